#!/bin/bash
# A control plane of its own for bench.scale.cluster: etcd, API server, controllers, scheduler, and simulated nodes (KWOK).
# Usage: plane.sh up DIR BIN NODES | plane.sh down DIR
# BIN has the programs (the `bin` of ../shared/kube's state). Pods "run" here and never end by themselves. Ports 236xx, 164xx.
set -euo pipefail
what=$1 dir=$2
if [ "$what" = down ]; then
  for file in "$dir"/*.pid; do [ -e "$file" ] && kill "$(cat "$file")" 2>/dev/null || true; done
  sleep 1
  for file in "$dir"/*.pid; do [ -e "$file" ] && kill -KILL "$(cat "$file")" 2>/dev/null || true; done
  exit 0
fi
bin=$3 nodes=$4
mkdir -p "$dir" && cd "$dir"
export KUBECONFIG=$dir/admin.conf PATH=$bin:$PATH
start() { local name=$1; shift; setsid "$@" </dev/null >"$dir/$name.log" 2>&1 & echo $! >"$dir/$name.pid"; }
ec=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
openssl req -x509 "${ec[@]}" -days 30 -subj /CN=scale-ca -keyout ca.key -out ca.crt 2>/dev/null
openssl ecparam -name prime256v1 -genkey -noout -out sa.key && openssl ec -in sa.key -pubout -out sa.pub 2>/dev/null
for pair in apiserver:/CN=kube-apiserver admin:/O=system:masters/CN=admin; do
  name=${pair%%:*}
  openssl req "${ec[@]}" -subj "${pair#*:}" -keyout "$name.key" -out "$name.csr" 2>/dev/null
  openssl x509 -req -in "$name.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -out "$name.crt" \
    -extfile <(printf 'extendedKeyUsage=serverAuth,clientAuth\nsubjectAltName=DNS:localhost,IP:127.0.0.1,IP:10.97.0.1') 2>/dev/null
done
cat >"$KUBECONFIG" <<YAML
apiVersion: v1
kind: Config
clusters: [{name: scale, cluster: {server: "https://127.0.0.1:16443", certificate-authority-data: $(base64 -w0 ca.crt)}}]
users: [{name: admin, user: {client-certificate-data: $(base64 -w0 admin.crt), client-key-data: $(base64 -w0 admin.key)}}]
contexts: [{name: scale, context: {cluster: scale, user: admin}}]
current-context: scale
YAML
start etcd etcd --data-dir "$dir/etcd" --unsafe-no-fsync --listen-client-urls http://127.0.0.1:23690 --advertise-client-urls http://127.0.0.1:23690 \
  --listen-peer-urls http://127.0.0.1:23691 --initial-advertise-peer-urls http://127.0.0.1:23691 --initial-cluster default=http://127.0.0.1:23691 --log-level warn
start apiserver kube-apiserver --etcd-servers http://127.0.0.1:23690 --bind-address 127.0.0.1 --secure-port 16443 --service-cluster-ip-range 10.97.0.0/16 \
  --allow-privileged --authorization-mode RBAC --client-ca-file ca.crt --tls-cert-file apiserver.crt --tls-private-key-file apiserver.key \
  --service-account-issuer https://kubernetes.default.svc.cluster.local --service-account-key-file sa.pub --service-account-signing-key-file sa.key
for _ in $(seq 300); do kubectl get --raw /readyz >/dev/null 2>&1 && break; sleep 0.5; done
start manager kube-controller-manager --kubeconfig "$KUBECONFIG" --authentication-kubeconfig "$KUBECONFIG" --authorization-kubeconfig "$KUBECONFIG" --secure-port 16457 \
  --service-account-private-key-file sa.key --root-ca-file ca.crt --leader-elect=false --kube-api-qps 300 --kube-api-burst 600 --concurrent-job-syncs 20 \
  --node-monitor-grace-period 600s  # only lost nodes are of interest, and none is
start scheduler kube-scheduler --kubeconfig "$KUBECONFIG" --authentication-kubeconfig "$KUBECONFIG" --authorization-kubeconfig "$KUBECONFIG" --secure-port 16459 \
  --leader-elect=false --kube-api-qps 300 --kube-api-burst 600
cat >kwok.yaml <<'YAML'
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-ready}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
    - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
    - {key: .status.podIP, operator: DoesNotExist}
  next:
    statusTemplate: |
      {{ $now := Now }}
      conditions:
      - {lastTransitionTime: {{ $now | Quote }}, status: "True", type: Initialized}
      - {lastTransitionTime: {{ $now | Quote }}, status: "True", type: Ready}
      - {lastTransitionTime: {{ $now | Quote }}, status: "True", type: ContainersReady}
      containerStatuses:
      {{ range .spec.containers }}
      - {image: {{ .image | Quote }}, name: {{ .name | Quote }}, ready: true, restartCount: 0, state: {running: {startedAt: {{ $now | Quote }}}}}
      {{ end }}
      initContainerStatuses:
      {{ range .spec.initContainers }}
      - {image: {{ .image | Quote }}, name: {{ .name | Quote }}, ready: true, started: true, restartCount: 0, state: {running: {startedAt: {{ $now | Quote }}}}}
      {{ end }}
      hostIP: 10.0.0.1
      podIP: 10.0.0.2
      phase: Running
      startTime: {{ $now | Quote }}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-stop}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
    - {key: .metadata.deletionTimestamp, operator: Exists}
    - {key: .status.phase, operator: In, values: [Running, Pending]}
  next:
    statusTemplate: |
      phase: Failed
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-delete}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
    - {key: .metadata.deletionTimestamp, operator: Exists}
    - {key: .status.phase, operator: In, values: [Failed, Succeeded]}
  next: {delete: true}
YAML
start kwok kwok --kubeconfig "$KUBECONFIG" --config kwok.yaml --manage-all-nodes=true --node-ip 127.0.0.1 --server-address 127.0.0.1:16247 --cidr 10.246.0.0/16
for i in $(seq 0 $((nodes - 1))); do
  echo "{apiVersion: v1, kind: Node, metadata: {name: fake-$i, labels: {type: kwok, kubernetes.io/hostname: fake-$i}},"
  echo " status: {allocatable: {cpu: 512, memory: 4Ti, pods: 500}, capacity: {cpu: 512, memory: 4Ti, pods: 500}}}"
  echo ---
done | kubectl apply -f - >/dev/null
kubectl wait --for=condition=Ready nodes --all --timeout=60s >/dev/null

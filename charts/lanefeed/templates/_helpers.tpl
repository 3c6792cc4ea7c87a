{{- define "lanefeed.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "lanefeed.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) }}
{{- default $full .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "lanefeed.selector" -}}
app.kubernetes.io/name: {{ include "lanefeed.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "lanefeed.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: lanefeed
{{ include "lanefeed.selector" . }}
{{- end }}

{{- define "lanefeed.account" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "lanefeed.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name: with serviceAccount.create false, name the account that is there" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- /* image: (dict "image" .Values.image "root" .) */ -}}
{{- define "lanefeed.image" -}}
{{- $registry := default .root.Values.registry .image.registry }}
{{- $repository := .image.repository }}
{{- if $registry }}
{{- $repository = printf "%s/%s" (trimSuffix "/" $registry) $repository }}
{{- end }}
{{- if .image.digest }}
{{- printf "%s@%s" $repository .image.digest }}
{{- else }}
{{- printf "%s:%s" $repository (coalesce .image.tag .root.Values.tag .root.Chart.AppVersion) }}
{{- end }}
{{- end }}

{{- define "lanefeed.certificate" -}}
{{ include "lanefeed.fullname" . }}-tls
{{- end }}

{{- define "lanefeed.lease" -}}
{{ include "lanefeed.fullname" . }}-leader
{{- end }}

{{- define "lanefeed.coordinator" -}}
{{- $own := printf "%s.%s.svc:%v" (include "lanefeed.fullname" .) .Release.Namespace .Values.report.port }}
{{- default $own .Values.report.coordinator }}
{{- end }}

{{- /* Rights in a namespace whose jobs the operator runs. Each with its reason: docs/security.md. */ -}}
{{- define "lanefeed.rules" -}}
- apiGroups: [lanefeed.dev]
  resources: [shardedtrainingjobs]
  verbs: [get, list, watch, delete]
- apiGroups: [lanefeed.dev]
  resources: [shardedtrainingjobs/status]
  verbs: [update]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, delete]
- apiGroups: [""]
  resources: [pods/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, create, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, create]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- if .Values.rbac.gangs }}
- apiGroups: [scheduling.volcano.sh, scheduling.x-k8s.io]
  resources: [podgroups]
  verbs: [get, create, delete]
{{- end }}
{{- end }}

{{/* A user or group: a number that --values makes a float, or "cluster". */}}
{{- define "lanefeed.identity" -}}
{{- if kindIs "string" . }}{{ . | quote }}{{ else }}{{ int64 . | quote }}{{ end }}
{{- end }}

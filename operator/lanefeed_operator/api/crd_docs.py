"""What `kubectl explain` says of fields that have no `#:` comment in `spec` and `status`.

Data only; read by `crd_schema`. A test sees to it that every field is described, in one place.
"""

__all__ = ["DOCS", "EXTRA"]

#: "Model.field" -> text.
DOCS = {
    "Job.spec": "What you want: data, batches, size, and the pods that train.",
    "Job.status": "How the job stands. Written by the operator alone.",
    # ---- spec ----
    "Spec.replicas": "Pods to train with. `kubectl scale stj/NAME --replicas=N` changes it while the job runs: all "
    "ranks checkpoint at one step, and N pods go on from there.",
    "Spec.ranks_per_replica": "Ranks (processes that train, usually GPUs) in each pod. Ranks in all are replicas x "
    "ranksPerReplica.",
    "Spec.data": "What to read. Cannot change: a running job's order of samples depends on it.",
    "Spec.batching": "How samples become global batches. Only `uneven` can change while the job lives.",
    "Spec.shuffle": "The shuffle. Cannot change: a running job's order of samples depends on it.",
    "Spec.epochs": "Passes over the dataset. Cannot change.",
    "Spec.epoch_boundary": "Aligned: an epoch ends at a step of its own. Continuous: the stream runs on into the next "
    "epoch with no seam, and maxSteps ends the job. Cannot change.",
    "Spec.sidecar": "The data plane of each pod: its memory, threads, slots and image. Changes take effect with the "
    "next plan generation.",
    "Spec.completion": "When the job is done. StreamEnd: every rank consumed its whole stream. OnExit: the trainers' "
    "exit code 0 is enough.",
    "Spec.suspend": "True: all ranks checkpoint at one step and leave; false again: the job goes on from there.",
    "Spec.active_deadline_seconds": "The job fails when it has run for this long.",
    "Spec.ttl_seconds_after_finished": "A finished job is deleted after this long. Left out: never.",
    "Spec.template": "The pods that train. A container named `trainer` is required; the sidecar is added to it. The "
    "rules are in docs/pod-template.md.",
    "Elastic.min_replicas": "Fewest pods the job may run with.",
    "Elastic.max_replicas": "Most pods the job may run with. Left out: as many as globalBatchSize allows.",
    "Data.uri": "A file, a folder, a glob such as /data/*.parquet, or a list of them. In a cluster: absolute paths in "
    "the trainer container, on volumes that it mounts, or a URI of a store, such as s3://bucket/train "
    "(docs/remote-data.md).",
    "Data.columns": "Columns to deliver, in this order. Left out: all.",
    "Data.images": "Columns of JPEG, PNG or WebP files to deliver as uint8 pixels (docs/images.md).",
    "Batching.global_batch_size": "Samples of one optimizer step, over all ranks. A multiple of the ranks, unless "
    "`uneven` is Allow.",
    "Batching.lanes": "Streams that the dataset is cut into, fixed for the job's life. More lanes: finer resizing, "
    "more open windows. Left out: chosen from the data at the first admission.",
    "Batching.layout": "What a sample is. Rows: a row of the dataset. Packed: a sequence of tokens of one length, that "
    "documents are packed into (docs/packing.md); globalBatchSize and the shuffle's window count sequences. Cannot "
    "change.",
    "Batching.packed": "How documents are packed, with layout Packed. Cannot change.",
    "Packed.column": "The column of lists of token numbers, a document in each row. Left out: the only one there is.",
    "Packed.sequence_length": "Tokens of a sequence.",
    "Packed.eos_token": "Put after each document, and in place of padding. Left out: nothing is put there, padding is "
    "0.",
    "Packed.mode": "Concat: documents end to end, cut wherever a sequence is full; the last sequence of each row group "
    "is padded. BestFit: documents are fitted to each other, and one that fits a sequence is never cut.",
    "Packed.cross_document_mask": "True: each batch has document_ids and position_ids too, so that attention can stay "
    "within a document.",
    "Shuffle.enabled": "False: shards and rows in the order of the manifest.",
    "Shuffle.seed": "Seed of every permutation: the same seed gives the same order.",
    "Shuffle.window": "Rows that are shuffled together. Left out: what fits the memory, from 256 to 8192 (of large "
    "rows from 16).",
    "Sidecar.read_ahead_bytes": "Memory for data read ahead and open windows. Counts into the sidecar's memory limit.",
    "Sidecar.decode_threads": "Threads that decode; 0: as many as there are CPUs, at most 4.",
    "Sidecar.slots": "Frames of batches that may wait in shared memory, for each rank.",
    "Sidecar.slot_bytes": "Size of a slot; 0: chosen so that a batch fits.",
    "Sidecar.cache": "The decoded cache: row groups that are needed again, in the next epoch, after a restart or by "
    "another job of the node, are read back from a local disk at a quarter of the CPU.",
    "Cache.size": "What it may take on disk. 0: no cache.",
    "Cache.volume": "Name of a volume of the pod template (hostPath or a claim: shared by the jobs of a node). Left "
    "out: an emptyDir, which goes with the pod.",
    "Sidecar.image": "Image of the sidecar and the indexer. Left out: the operator's own release.",
    "Sidecar.resources": "Requests and limits of the sidecar. The memory limit is computed by the operator (arena, "
    "read-ahead and overhead); a smaller one is refused.",
    "Template.metadata": "Labels and annotations of the pods.",
    "Template.spec": "The pod's spec. Fields that are not listed here are Kubernetes' own and are kept as written.",
    "TemplateMeta.labels": "Labels of the pods. Those under lanefeed.dev/ are the operator's.",
    "TemplateMeta.annotations": "Annotations of the pods.",
    "PodSpec.containers": "Containers of the pod; one is named trainer.",
    "Container.name": "Name of the container; `trainer` is the one that trains.",
    "Container.image": "Image of the container.",
    "Container.command": "Entrypoint, such as [torchrun, train.py]; torchrun needs no options: PET_* are set.",
    "Container.args": "Arguments of the entrypoint.",
    "Container.env": "Environment. LANEFEED_*, PET_*, TORCHELASTIC_*, RANK and their like are the operator's.",
    "Container.working_dir": "Working directory.",
    "EnvVar.name": "Name of the variable.",
    "EnvVar.value": "Value; $(NAME) refers to a variable above it.",
    # ---- status ----
    "Status.state": "One word for people, derived from the conditions.",
    "Status.observed_generation": "metadata.generation that this status answers.",
    "Status.plan_generation": "Number of the current plan; grows with every resize and restart of the topology.",
    "Status.replicas": "Pods of the current plan.",
    "Status.ready_replicas": "Pods that are ready.",
    "Status.cursor": "The last commit: where a restart begins.",
    "Status.plan": "The current plan generation, written ahead of its children.",
    "Status.stop": "An agreed stop of the current plan, if there is one.",
    "Status.stream": "The frozen identity of the stream: everything that the order of samples depends on.",
    "Status.restarts": "Counters over the job's whole life. They only grow.",
    "Status.conditions": "The truth about the job. Each message says the next thing to do.",
    "Status.ledger": "The proof: epochs of which every sample was consumed exactly once.",
    "Status.progress": "Where the ranks are. Informative; written at most every 10 seconds.",
    "Status.stall_percent": "Share of the time that ranks wait for data.",
    "Status.start_time": "When it began; anew after a suspension, and after a queue held it back.",
    "Status.completion_time": "When the job ended.",
    "Condition.type": "Name of the condition.",
    "Condition.status": "True, False or Unknown.",
    "Condition.reason": "Why, in one CamelCase word.",
    "Condition.message": "What happened, and the next thing to do.",
    "Condition.last_transition_time": "When `status` last changed.",
    "Condition.observed_generation": "metadata.generation that the condition was made of.",
    "CursorStatus.epoch": "Epoch of the next step.",
    "CursorStatus.step": "The next step, within the epoch.",
    "CursorStatus.total_step": "The next step, over all epochs.",
    "CursorStatus.commit": "Name that the trainer gave to the checkpoint.",
    "CursorStatus.plan_generation": "Plan generation that made the commit.",
    "PlanStatus.generation": "Number of the plan.",
    "PlanStatus.replicas": "Its pods.",
    "PlanStatus.ranks_per_replica": "Ranks in each of its pods.",
    "PlanStatus.reason": "Why it was made.",
    "PlanStatus.time": "When it was made.",
    "PlanStatus.restart_token": "spec.restartToken when it was made.",
    "StopStatus.step": "Total step at which all ranks leave.",
    "StopStatus.reason": "Why they leave.",
    "StopStatus.time": "When it was asked for.",
    "StopStatus.outcome": "How it ended.",
    "Restarts.disruptions": "Pods that the cluster ended (preemption, eviction, lost node), or that left with code 75.",
    "Restarts.resizes": "Changes of the size.",
    "Restarts.suspends": "Suspensions.",
    "Restarts.last_reason": "Why the topology last restarted.",
    "Restarts.last_time": "When the topology last restarted.",
    "StreamStatus.manifest": "Digest of the dataset that the job is bound to.",
    "StreamStatus.rows": "Samples in the dataset.",
    "StreamStatus.seed": "Seed of every permutation.",
    "StreamStatus.global_batch_size": "Samples of one step, over all ranks.",
    "StreamStatus.lanes": "Streams that the dataset is cut into.",
    "StreamStatus.window": "Rows that are shuffled together.",
    "StreamStatus.shuffle": "Whether samples are shuffled.",
    "StreamStatus.boundary": "spec.epochBoundary.",
    "StreamStatus.last_batch": "spec.batching.lastBatch.",
    "StreamStatus.steps_per_epoch": "Steps of an epoch.",
    "EpochProof.epoch": "The epoch.",
    "EpochProof.samples": "Samples that were consumed.",
    "EpochProof.digest": "Digest of the samples that were consumed.",
    "EpochProof.expected": "Digest that the manifest asks for.",
    "EpochProof.expected_samples": "Samples that the manifest asks for.",
    "EpochProof.verified": "Whether both agree.",
    "EpochProof.partial": "Whether the job ended inside of the epoch.",
    "LedgerStatus.verified": "Epochs that were proven, in all.",
    "LedgerStatus.epochs": "The newest 32 proofs.",
    "RankProgress.rank": "The rank.",
    "RankProgress.consumed": "Total steps that it consumed.",
    "RankProgress.started": "Total step at which it began in this plan.",
    "RankProgress.attached": "Whether its trainer is connected to the sidecar.",
    "RankProgress.ended": "Whether its stream has ended.",
    "RankProgress.stall_percent": "Share of the time that it waits for data.",
    "Progress.time": "When this was written.",
    "Progress.fastest": "Total steps of the fastest rank.",
    "Progress.percent": "How much of the job is done.",
    "Progress.steps_per_second": "Steps a second, lately.",
}

#: Fields that the schema has and the models have not (Kubernetes' own, or the cluster shell's), by path in the schema.
EXTRA: dict[str, str] = {}

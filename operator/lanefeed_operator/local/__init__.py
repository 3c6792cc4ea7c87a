"""The local shell: one machine plays the cluster for the very same reconcile.

`runner` is the loop; `children` keeps what a cluster's Indexed Job keeps; `pod` is one pod's supervisor process, which
plays the kubelet and outlives the runner; `store` holds the job's state folder. Nothing here decides anything that
`reconcile` could decide.
"""

"""Which nodes are lost, and since when: silence counts only while another node is heard. Pure; called by the view.

After an outage of the control plane every node is marked NotReady at once, because the API server took no heartbeats:
the kubelets and their pods are well. The node controller stops evicting then ("full disruption"), and so does this
rule: a node is lost since it was marked, or since the first of the nodes that are heard now was heard, whichever is
later. It needs no memory, so that a new operator judges as the old one did. Where no node at all is heard none is
lost: nothing could be placed anywhere. What follows from a lost node is for `reconcile.lost`.
"""

from collections.abc import Collection
from dataclasses import replace

from lanefeed_operator.kube.facts import NodeFacts

__all__ = ["lost_nodes"]


def lost_nodes(nodes: Collection[NodeFacts]) -> dict[str, NodeFacts]:
    """Those that have not been heard of, by name; `lost_since` in seconds since 1970, as far as it may be counted."""
    heard = min((node.heard_since for node in nodes if node.heard_since is not None), default=None)
    if heard is None:
        return {}
    return {
        node.name: replace(node, lost_since=max(node.lost_since, heard))
        for node in nodes
        if node.lost_since is not None
    }

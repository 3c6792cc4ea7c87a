"""The Feed service: one life per attached rank, slots as the only credit, frames signalled over a Unix socket."""

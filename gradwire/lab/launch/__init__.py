"""Starting the ranks of a job, on this machine or as torchrun did."""

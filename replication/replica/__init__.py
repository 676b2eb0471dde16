"""The replicas on one broker: their logs and roles, what controllers order, what leaders serve and followers fetch."""

"""What administrators ask and change: topics, configurations, directories, the cluster, quotas, telemetry."""

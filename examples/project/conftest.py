pytest_plugins = ["ottla.testing.pipelines"]

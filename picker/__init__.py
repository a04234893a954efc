"""An Envoy ext_proc endpoint picker for Ray Serve proxies and model servers."""

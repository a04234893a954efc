"""A real Kubernetes API server for tests: kube-apiserver and etcd, on 127.0.0.1 only.

It is the API server alone. There is no kubelet, scheduler or controller, so a test plays their part: it
sets the status of a Pod, writes EndpointSlices itself, and removes a terminating Pod by deleting it with
a grace period of 0. Namespaces, once deleted, stay in Terminating: each test takes one of its own.
"""

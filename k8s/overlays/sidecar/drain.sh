# The preStop hook of Envoy, which ends at once when it is told to: first nobody is to send more requests, then
# those that run are to end. Kubernetes ends the wait after terminationGracePeriodSeconds.
admin() {
    exec 3<>"/dev/tcp/127.0.0.1/${ENVOY_ADMIN_PORT:-9901}"
    printf '%s HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n' "$1" >&3
    cat <&3
    exec 3>&-
}

admin 'POST /healthcheck/fail' >/dev/null
sleep "${ENVOY_DRAIN_DELAY:-10}"
while admin 'GET /stats?filter=^http.gateway.downstream_rq_active$' | grep -q '^http.*: [1-9]'; do
    sleep 1
done

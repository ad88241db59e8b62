package edge

import "testing"

// service.md, Errors: RATE_LIMITED is "token bucket empty". A bucket that cannot be
// asked is not known to be empty: storage or a queue cannot serve.
func TestABucketThatCannotBeAskedIsNotEmpty(t *testing.T) {
	for _, c := range []struct {
		name   string
		call   func(*world) answer
		status int
		code   string
	}{
		{"a tenant's", func(w *world) answer { return w.call("GET", "/v1/threads", "") }, 503, "UNAVAILABLE"},
		{"a user's", func(w *world) answer {
			return w.call("GET", "/v1/threads", "", "Authorization: -", "Cookie: svc_session=session-member")
		}, 503, "UNAVAILABLE"},
		{"a client's, with a wrong key", func(w *world) answer { return w.call("GET", "/v1/threads", "", "Authorization: Bearer gone") }, 503, "UNAVAILABLE"},
		{"a client's, without a key", func(w *world) answer { return w.call("GET", "/v1/threads", "", "Authorization: -") }, 503, "UNAVAILABLE"},
		{"a client's, on a public route", func(w *world) answer { return w.call("POST", "/hooks/a", "{}") }, 503, "UNAVAILABLE"},
		{"a client's, on no route", func(w *world) answer { return w.call("GET", "/nope", "", "Authorization: -") }, 503, "UNAVAILABLE"},
		{"a tenant's, on no route", func(w *world) answer { return w.call("GET", "/nope", "") }, 503, "UNAVAILABLE"},
		{"the role comes before it", func(w *world) answer { return w.call("PATCH", "/v1/tenant", "{}") }, 403, "FORBIDDEN"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.limits.away = true
			a := c.call(w)
			if a.status != c.status || a.problem(t).Code != c.code || (a.header.Get("Retry-After") == "1") != (c.status == 503) {
				t.Errorf("%d %v %s", a.status, a.header, a.body)
			}
		})
	}
	w := newWorld(t)
	w.limits.away = true
	if a := w.call("GET", "/healthz", ""); a.status != 200 {
		t.Errorf("health is never limited: %d", a.status)
	}
}

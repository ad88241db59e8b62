package edge

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"
)

// routesOfTheSpecification are those where fixed segments and parameters meet.
var routesOfTheSpecification = []string{
	"GET /", "GET /healthz", "POST /hooks/{triggerId}", "GET /v1/openapi.json",
	"GET /v1/agents", "POST /v1/agents", "GET /v1/agents/{id}", "DELETE /v1/agents/{id}", "GET /v1/agents/{id}/versions", "GET /v1/agents/{id}/versions/{version}",
	"POST /v1/agents/{id}/versions/{version}/publish", "POST /v1/agents/{id}/runs", "GET /v1/agents/{id}/tools",
	"GET /v1/runs", "GET /v1/runs/{id}", "GET /v1/runs/{id}/events", "GET /v1/runs/{id}/artifacts/{artifactId}",
	"GET /v1/workflows/{id}", "POST /v1/workflows/{id}/test-run", "POST /v1/workflows/{id}/runs", "POST /v1/workflows/runs/{runId}/events",
	"POST /v1/approvals/bulk-decision", "POST /v1/approvals/{id}/decision", "GET /v1/approvals/{id}",
	"GET /v1/webhooks/event-types", "GET /v1/webhooks/{id}", "GET /v1/webhooks/{id}/deliveries", "POST /v1/webhooks/{id}/deliveries/{deliveryId}/redeliver", "POST /v1/webhooks/{id}/recover",
	"GET /v1/browser-skills", "GET /v1/browser-skills/{id}", "GET /v1/browser-skills/{id}/runs", "GET /v1/browser-skills/runs", "GET /v1/browser-skills/runs/{runId}",
	"DELETE /v1/browser-skills/{id}/grants/{grantId}", "GET /v1/browser-skills/artifacts/{key...}", "POST /v1/browser-skills/recorder-sessions",
	"GET /v1/browser-skills/recorder-sessions/{id}", "POST /v1/browser-skills/recorder-sessions/{id}/actions",
	"OPTIONS /v1/embed/{rest...}", "GET /v1/embed/threads/{id}/messages", "GET /v1/usage", "GET /v1/usage/records",
}

// match is what a route says, segment by segment.
func match(route, path []string) (params []string, ok bool) {
	for i, s := range route {
		if strings.HasSuffix(s, "...}") {
			rest := strings.Join(path[min(i, len(path)):], "/")
			return append(params, rest), rest != ""
		}
		if i >= len(path) {
			return nil, false
		}
		switch {
		case strings.HasPrefix(s, "{"):
			if path[i] == "" {
				return nil, false
			}
			params = append(params, path[i])
		case s != path[i]:
			return nil, false
		}
	}
	return params, len(route) == len(path)
}

// rank orders the routes that match a path: the earlier fixed segment wins.
func rank(route []string) (r string) {
	for _, s := range route {
		switch {
		case strings.HasSuffix(s, "...}"):
			r += "2"
		case strings.HasPrefix(s, "{"):
			r += "1"
		default:
			r += "0"
		}
	}
	return r
}

// likeFixed says whether a parameter begins a fixed segment of some route: no
// path of ours has such a one, and the router does not look for it.
func likeFixed(params []string) bool {
	for _, one := range routesOfTheSpecification {
		for _, s := range strings.FieldsFunc(one, func(r rune) bool { return r == '/' || r == ' ' }) {
			for _, p := range params {
				if strings.HasPrefix(s, p) {
					return true
				}
			}
		}
	}
	return false
}

func TestTheRouterFindsWhatTheRoutesSay(t *testing.T) {
	var r router
	methods := map[string]bool{}
	words := map[string]bool{"x": true, "": true, "01a1fe1a-f0b8-76f3-9442-f6225bb3af01": true, "%2f": true, "..": true, "RUNS": true, "{id}": true, "é": true}
	for _, one := range routesOfTheSpecification {
		method, path, _ := strings.Cut(one, " ")
		methods[method] = true
		r.add(&endpoint{Route: Route{Method: method, Path: path, ID: one}})
		for _, s := range strings.Split(path, "/") {
			if !strings.HasPrefix(s, "{") {
				words[s], words[s+"x"] = true, true
			}
		}
	}
	var vocabulary []string
	for w := range words {
		vocabulary = append(vocabulary, w)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	found := 0
	for range 60_000 {
		one := routesOfTheSpecification[rnd.IntN(len(routesOfTheSpecification))]
		method, path, _ := strings.Cut(one, " ")
		segments := strings.Split(path, "/")
		for i := range segments {
			if i > 0 && (strings.HasPrefix(segments[i], "{") || rnd.IntN(6) == 0) {
				segments[i] = vocabulary[rnd.IntN(len(vocabulary))]
			}
		}
		if rnd.IntN(6) == 0 {
			segments = append(segments, vocabulary[rnd.IntN(len(vocabulary))])
		}
		var want string
		var params []string
		for _, other := range routesOfTheSpecification {
			m, p, _ := strings.Cut(other, " ")
			if m != method {
				continue
			}
			if got, ok := match(strings.Split(p, "/"), segments); ok && (want == "" || rank(strings.Split(p, "/")) < rank(strings.Split(strings.TrimPrefix(want, m+" "), "/"))) {
				want, params = other, got
			}
		}
		asked := strings.Join(segments, "/")
		if asked == "" {
			continue // no request target
		}
		var fc fasthttp.RequestCtx
		e := r.find(method, []byte(asked), &fc)
		switch {
		case e == nil && (want == "" || likeFixed(params)):
		case e == nil || e.ID != want:
			t.Fatalf("%s %s: found %v, want %q", method, asked, e, want)
		default:
			found++
			for i, p := range params {
				if got, _ := fc.UserValue(paramKeys[i]).(string); got != p {
					t.Fatalf("%s %s: parameter %d is %q, want %q", method, asked, i, got, p)
				}
			}
		}
	}
	if found < 1000 {
		t.Fatalf("only %d paths were found", found)
	}
}

package edge

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"agentsvc/schemas/span"
	"agentsvc/schemas/testkit"
)

// toldRequests collects the spans of requests.
type toldRequests struct {
	mu   sync.Mutex // guards told
	told []string
}

func (r *toldRequests) Request(s span.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.Began.IsZero() || s.Took < 0 {
		r.told = append(r.told, "no time")
	}
	r.told = append(r.told, strings.Join([]string{s.Name, s.Method, s.Route, strconv.Itoa(s.Status), s.ID, string(s.Parent), strconv.FormatBool(s.Tenant.IsZero())}, "|"))
}

func TestEachRequestIsTold(t *testing.T) {
	told := &toldRequests{}
	w := newWorld(t, func(c *Config) { c.Spans = told })
	for _, tc := range []struct {
		method, path string
		headers      []string
		want         string
	}{
		{"GET", "/v1/nowhere", []string{"X-Request-Id: r-1", "Traceparent: 00-p"}, "|GET||404|r-1|00-p|true"},
		{"GET", "/v1/threads/" + w.thread.String(), []string{"X-Request-Id: r-2"}, "getThread|GET|/v1/threads/{id}|200|r-2||false"},
	} {
		w.call(tc.method, tc.path, "", tc.headers...)
		testkit.Within(t, patience, tc.want, func() bool {
			told.mu.Lock()
			defer told.mu.Unlock()
			return slices.Contains(told.told, tc.want)
		})
	}
	if _, err := w.raw("GET /v1/nowhere HTTP/1.1\r\nHost: h\r\nX-Request-Id: r-3\r\ntraceparent: 00-a\r\ntraceparent: 00-b\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	testkit.Within(t, patience, "a field that is given twice is ignored", func() bool {
		told.mu.Lock()
		defer told.mu.Unlock()
		return slices.Contains(told.told, "|GET||404|r-3||true")
	})
}

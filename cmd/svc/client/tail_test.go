package client

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
)

// feedOf serves a feed that breaks after its frames, and refuses the third connection.
func feedOf(t *testing.T, frames string) *atomic.Pointer[string] {
	t.Helper()
	var asked atomic.Pointer[string]
	var n atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at := r.URL.RequestURI()
		asked.Store(&at)
		if n.Add(1) == 3 {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"status":401,"code":"UNAUTHORIZED","title":"no"}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, ": ok\n\n"+frames)
	}))
	t.Cleanup(srv.Close)
	t.Setenv("SVC_URL", srv.URL)
	t.Setenv("SVC_API_KEY", "svc_test")
	t.Setenv("SVC_TENANT", "tenant")
	return &asked
}

const fed = "event: feed.ready\ndata: {\"type\":\"feed.ready\"}\n\n" +
	"event: heartbeat\ndata: {\"type\":\"heartbeat\"}\n\n" +
	"event: run.changed\ndata: {\"type\":\"run.changed\",\"id\":\"" + runID + "\",\"status\":\"failed\",\"agent_id\":\"" + agentID + "\",\"workflow_id\":null}\n\n" +
	"event: approval.changed\ndata: {\"type\":\"approval.changed\",\"id\":\"" + firstID + "\",\"run_id\":\"" + runID + "\",\"status\":\"pending\",\"risk\":\"high\",\"assignee_role\":\"admin\"}\n\n" +
	"event: resource.changed\ndata: {\"type\":\"resource.changed\",\"kind\":\"delivery\\u001b[2J\",\"id\":\"" + firstID + "\",\"parent_id\":\"" + secondID + "\"}\n\n" +
	"event: feed.lost\ndata: {\"type\":\"feed.lost\",\"topics\":[\"runs\",\"approvals\"]}\n\n" +
	"event: of.later\ndata: {\"type\":\"of.later\"}\n\n"

// A broken feed is opened again; a refusal ends the command.
func TestTail(t *testing.T) {
	asked := feedOf(t, fed)
	out, errs, code := svc(t, nil, "tail", "--topics", "runs,approvals")
	if code != 1 || !strings.Contains(errs, "UNAUTHORIZED") || *asked.Load() != "/v1/feed?topics=runs%2Capprovals" {
		t.Errorf("code %d %s, asked %s", code, errs, *asked.Load())
	}
	want := regexp.MustCompile(`^(\d\d:\d\d:\d\d  connected
\d\d:\d\d:\d\d  run [0-9a-f]{8} failed, agent [0-9a-f]{8}
\d\d:\d\d:\d\d  approval 00000001 pending, high risk, for admin, run [0-9a-f]{8}
\d\d:\d\d:\d\d  delivery\\u001b\[2J 00000001 of 00000002
\d\d:\d\d:\d\d  more has changed than is shown: runs, approvals
){2}$`)
	if !want.MatchString(out) {
		t.Errorf("%s", out)
	}
}

func TestTailAsJSON(t *testing.T) {
	feedOf(t, fed)
	out, _, _ := svc(t, nil, "tail", "--json")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 12 {
		t.Errorf("%d lines: %s", len(lines), out)
	}
	for _, l := range lines {
		if !json.Valid([]byte(l)) {
			t.Error(l)
		}
	}
}

// The end of the command's context ends it.
func TestTailEnds(t *testing.T) {
	feedOf(t, "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := clientOf(t).tail(ctx, "/v1/feed", func(Frame) error { return nil }); err == nil {
		t.Error("it goes on")
	}
}

func TestStatusShowsTheOverview(t *testing.T) {
	overview := object{
		"at": "2030-01-02T03:04:05Z", "runs": object{"queued": 1, "running": 2, "waiting_approval": 3, "succeeded_24h": 4, "failed_24h": 5, "cancelled_24h": 6},
		"approvals":  object{"pending": 3, "mine": 2, "by_risk": object{}, "next_expires_at": "2030-01-02T04:04:05Z"},
		"deliveries": object{"pending": 7, "failed_24h": 8},
		"attention":  []object{{"kind": "failing_agent", "id": agentID, "title": "Help\x1b[2Jer", "count": 5, "since": "2030-01-02T03:04:05Z"}, {"kind": "approvals", "id": nil, "title": "Approvals", "count": 2, "since": "2030-01-02T03:04:05Z"}},
	}
	me := object{"principal": "apikey:1", "role": "admin", "tenant": object{"id": "t", "name": "T"}}
	answers := map[string]any{"GET /healthz": object{}, "GET /readyz": object{}, "GET /v1/auth/me": me, "GET /v1/overview": overview}
	recorded(t, answers)
	out, errs, code := svc(t, nil, "status")
	for _, want := range []string{
		"runs       1 queued, 2 running, 3 waiting; in 24 h 4 succeeded, 5 failed, 6 cancelled\n", "approvals  3 pending, 2 of them yours, the next expires at 2030-01-02T04:04:05Z\n",
		"webhooks   7 deliveries pending, 8 failed in 24 h\n", `Help\u001b[2Jer: 5 since`, "attention  approvals Approvals: 2 since",
	} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("code %d %s: %s lacks %q", code, errs, out, want)
		}
	}
	out, _, code = svc(t, nil, "status", "--json")
	if code != 0 || !strings.Contains(out, `"mine": 2`) {
		t.Errorf("code %d %s", code, out)
	}
	delete(answers, "GET /v1/overview") // an older service
	recorded(t, answers)
	if out, _, code := svc(t, nil, "status"); code != 0 || strings.Contains(out, "approvals") {
		t.Errorf("code %d %s", code, out)
	}
}

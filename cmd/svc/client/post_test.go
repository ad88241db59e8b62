package client

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// keyedPosts wraps answers so that they note the Idempotency-Key and the body of each request.
func keyedPosts(t *testing.T, answers ...http.HandlerFunc) (c *Client, took func() []string) {
	t.Helper()
	var mu sync.Mutex // guards said
	var said []string
	for i, answer := range answers {
		answers[i] = func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			said = append(said, r.Header.Get("Idempotency-Key")+" "+string(body))
			mu.Unlock()
			answer(w, r)
		}
	}
	c, _ = streamOf(t, answers...)
	return c, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return said
	}
}

// hangUp closes the connection without an answer.
func hangUp(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		conn.Close()
	}
}

// problemIs answers with a problem.
func problemIs(status int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}
}

// A POST whose answer was lost, or that was refused for a moment, is repeated under its key: it is done
// once.
func TestAPostIsRepeatedUnderItsKey(t *testing.T) {
	t.Parallel()
	half := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, `{"id":`)
	}
	c, took := keyedPosts(t, hangUp, half, badGateway, problemIs(503, `{"status":503,"code":"UNAVAILABLE"}`), problemIs(409, `{"status":409,"code":"IDEMPOTENCY_IN_PROGRESS","retry_after":0.01}`),
		problemIs(429, `{"status":429,"code":"RATE_LIMITED","retry_after":0.01}`), problemIs(201, `{"id":"made"}`))
	var made struct{ ID string }
	if err := c.Call(within(t, time.Minute), http.MethodPost, "/v1/webhooks", object{"url": "https://shop.example.com"}, &made); err != nil || made.ID != "made" {
		t.Errorf("%v %+v", err, made)
	}
	said := took()
	if len(said) != 7 || !strings.HasSuffix(said[0], ` {"url":"https://shop.example.com"}`) || len(strings.Fields(said[0])[0]) < 20 {
		t.Fatalf("%q", said)
	}
	for _, s := range said {
		if s != said[0] {
			t.Errorf("%q is no repeat of %q", s, said[0])
		}
	}
	if err := c.Call(t.Context(), http.MethodPost, "/v1/webhooks", object{}, nil); err != nil || strings.Fields(took()[7])[0] == strings.Fields(said[0])[0] {
		t.Errorf("%v: the next call has the same key", err)
	}
}

// A refusal is not repeated, and neither are calls without a key. The error of a lost answer says what
// may be.
func TestWhatIsNotRepeated(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		method, path string
		answer       http.HandlerFunc
		says         string
	}{
		{http.MethodPost, "/v1/webhooks", problemIs(409, `{"status":409,"code":"NAME_TAKEN"}`), "NAME_TAKEN"},
		{http.MethodPost, "/v1/mcp-servers/x/test", problemIs(502, `{"status":502,"code":"MCP_UNREACHABLE"}`), "MCP_UNREACHABLE"},
		{http.MethodPost, "/v1/browser-skills/x/dry-run", problemIs(503, `{"status":503,"code":"BROWSER_SKILL_UNAVAILABLE"}`), "BROWSER_SKILL_UNAVAILABLE"},
		{http.MethodPost, "/v1/auth/logout", hangUp, "may have been done"},
		{http.MethodDelete, "/v1/webhooks/x", hangUp, "may have been done"},
		{http.MethodGet, "/v1/webhooks", hangUp, "is not reachable"},
	} {
		c, took := keyedPosts(t, row.answer)
		if err := c.Call(within(t, time.Minute), row.method, row.path, nil, nil); err == nil || !strings.Contains(err.Error(), row.says) || len(took()) != 1 {
			t.Errorf("%s %s: %v, %q", row.method, row.path, err, took())
		}
	}
	c, took := keyedPosts(t, hangUp)
	c.patience = 3 * time.Second
	if err := c.Call(within(t, time.Minute), http.MethodPost, "/v1/webhooks", nil, nil); err == nil || !strings.Contains(err.Error(), "so it may have been done") || len(took()) < 2 {
		t.Errorf("%v, %q", err, took())
	}
	away := &Client{Base: "http://127.0.0.1:1", HTTP: &http.Client{}}
	if err := away.Call(within(t, time.Minute), http.MethodPost, "/v1/webhooks", nil, nil); err == nil || !strings.Contains(err.Error(), "is not reachable") {
		t.Error(err) // nothing was sent: it is not waited for
	}
}

// A message that is refused for a moment, or not delivered at first, is sent again; one that is refused
// for good is told, and the next line is sent.
func TestChatOutlivesARefusedMessage(t *testing.T) {
	for _, row := range []struct {
		refused http.HandlerFunc
		code    int
		says    string
		posted  int
	}{
		{problemIs(429, `{"status":429,"code":"RATE_LIMITED","retry_after":0.01}`), 0, "", 4},
		{hangUp, 0, "", 4},
		{problemIs(422, `{"status":422,"code":"VALIDATION","detail":"too long"}`), 1, "VALIDATION: too long\nsvc: 1 of 3 answers failed\n", 3},
		{problemIs(404, `{"status":404,"code":"NOT_FOUND","detail":"The thread is gone."}`), 1, "NOT_FOUND", 2},
	} {
		posted := 0 // requests come one after the other
		mux := http.NewServeMux()
		mux.HandleFunc("POST /v1/threads", problemIs(201, `{"id":"`+threadID+`"}`))
		mux.HandleFunc("POST /v1/threads/{id}/messages", func(w http.ResponseWriter, r *http.Request) {
			if posted++; posted == 2 {
				row.refused(w, r)
				return
			}
			problemIs(202, `{"run_id":"`+runID+`"}`)(w, r)
		})
		mux.HandleFunc("GET /v1/runs/{id}/events", saying(endOfRun))
		srv := httptest.NewServer(mux)
		t.Cleanup(srv.Close)
		t.Setenv("SVC_URL", srv.URL)
		t.Setenv("SVC_API_KEY", "svc_test")
		t.Setenv("SVC_TENANT", "tenant")
		_, errs, code := svc(t, strings.NewReader("one\ntwo\nthree\n"), "chat", agentID)
		srv.Close() // ends all handlers
		if code != row.code || !strings.Contains(errs, row.says) || row.code == 0 && errs != "" || posted != row.posted {
			t.Errorf("exit %d, posted %d, want %d: %s", code, posted, row.posted, errs)
		}
	}
}

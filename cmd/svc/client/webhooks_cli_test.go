package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsvc/cmd/svc/clitest"
	"agentsvc/schemas/testkit"
)

const (
	hookID    = "0193d111-0000-7000-8000-0000000000d1"
	otherHook = "0193d122-0000-7000-8000-0000000000d2"
)

// fakeHooks answers the routes of webhooks as the service does, as far as the
// commands ask.
type fakeHooks struct {
	*httptest.Server
	mu     sync.Mutex // guards the fields below
	asked  []string   // method, path with query, body
	pulls  []any      // what pulls answer, in order: items, or a problem; then nothing
	gone   bool       // the listener was removed
	report []attempted
}

func newFakeHooks(t *testing.T, pulls ...any) *fakeHooks {
	t.Helper()
	f := &fakeHooks{pulls: pulls}
	hook := object{"id": hookID, "url": "https://r.example/in", "events": []string{"run.failed"}, "description": "Desk\x1b[2J", "enabled": true, "secret": "whsec_shown"}
	answers := map[string]any{
		"GET /v1/webhooks":                                                      object{"items": []object{hook, {"id": otherHook, "url": "https://o.example", "events": []string{"*"}, "enabled": false}}},
		"POST /v1/webhooks":                                                     hook,
		"GET /v1/webhooks/" + hookID:                                            hook,
		"PATCH /v1/webhooks/" + hookID:                                          hook,
		"DELETE /v1/webhooks/" + hookID:                                         nil,
		"POST /v1/webhooks/" + hookID + "/test":                                 object{"delivery_id": firstID},
		"POST /v1/webhooks/" + hookID + "/recover":                              object{"deliveries": 17},
		"POST /v1/webhooks/" + hookID + "/rotate-secret":                        hook,
		"POST /v1/webhooks/" + hookID + "/deliveries/" + firstID + "/redeliver": object{"delivery_id": firstID},
		"GET /v1/webhooks/" + hookID + "/deliveries": object{"next_cursor": nil, "items": []object{
			{"id": firstID, "type": "run.failed", "status": "pending", "attempts": 2, "last_http_status": 503, "last_error": "the answer was 503",
				"next_attempt_at": "2030-01-02T03:04:05Z", "created_at": "2030-01-02T03:04:00Z"}}},
		"POST /v1/webhooks/listeners": object{"id": otherHook, "events": []string{"*"}, "secret": "whsec_shown", "expires_at": "2030-01-02T03:04:05Z"},
	}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		line := r.Method + " " + r.URL.RequestURI()
		f.asked = append(f.asked, strings.TrimSpace(line+" "+string(body)))
		switch line {
		case "POST /v1/webhooks/listeners/" + otherHook + "/pull":
			f.pull(t, w, body)
			return
		case "DELETE /v1/webhooks/listeners/" + otherHook:
			f.gone = true
			w.WriteHeader(http.StatusNoContent)
			return
		}
		said, known := answers[r.Method+" "+r.URL.Path]
		if !known {
			w.WriteHeader(http.StatusNotFound)
			said = object{"code": "NOT_FOUND", "detail": "nothing here"}
		}
		if err := json.NewEncoder(w).Encode(said); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(f.Close)
	t.Setenv("SVC_URL", f.URL)
	t.Setenv("SVC_API_KEY", "svc_test")
	t.Setenv("SVC_TENANT", "tenant")
	return f
}

// pull answers the next pull; the caller holds mu.
func (f *fakeHooks) pull(t *testing.T, w http.ResponseWriter, body []byte) {
	var in struct{ Results []attempted }
	if err := json.Unmarshal(body, &in); err != nil || in.Results == nil {
		t.Errorf("a pull of %s: %v", body, err)
	}
	var next any = []pulled{}
	if len(f.pulls) > 0 {
		next, f.pulls = f.pulls[0], f.pulls[1:]
	}
	said := next
	switch next := next.(type) {
	case []pulled:
		f.report = append(f.report, in.Results...)
		said = object{"items": next, "expires_at": "2030-01-02T03:04:05Z"}
	case object:
		w.WriteHeader(next["status"].(int))
	}
	if err := json.NewEncoder(w).Encode(said); err != nil {
		t.Error(err)
	}
}

func (f *fakeHooks) reports() []attempted {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.report)
}

func (f *fakeHooks) take() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := f.asked
	f.asked = nil
	return asked
}

// Each command: what it asks for, and what it prints.
func TestWebhookCommands(t *testing.T) {
	f := newFakeHooks(t)
	at := " /v1/webhooks/" + hookID
	shown := "endpoint  " + hookID + "\nurl       https://r.example/in\nevents    run.failed\nsecret    whsec_shown   (shown once)\n"
	state := hookID + "  enabled  run.failed  https://r.example/in\n"
	for _, c := range []struct {
		args []string
		code int
		asks string
		out  string // a part of it
	}{
		{[]string{"ls"}, 0, "GET /v1/webhooks?limit=100", "000000d1  yes      run.failed  https://r.example/in  Desk\\u001b[2J\n000000d2  no       *           https://o.example"},
		{[]string{"create", "https://r.example/in"}, 0, `POST /v1/webhooks {"description":"","events":["*"],"url":"https://r.example/in"}`, shown},
		{[]string{"create", "https://r.example/in", "--events", "run.failed,run.completed", "--description", "d"}, 0,
			`POST /v1/webhooks {"description":"d","events":["run.failed","run.completed"],"url":"https://r.example/in"}`, shown},
		{[]string{"create"}, 2, "", ""},
		{[]string{"get", hookID}, 0, "GET" + at, `"url": "https://r.example/in"`},
		{[]string{"get", "000000d1"}, 0, "GET /v1/webhooks?limit=100, GET" + at, `"url": "https://r.example/in"`},
		{[]string{"get", "0193d111"}, 1, "GET /v1/webhooks?limit=100", `no endpoint's id ends with "0193d111"`},
		{[]string{"get", "d1"}, 1, "GET /v1/webhooks?limit=100", `"d1" is too short`},
		{[]string{"update", hookID, "--url", "https://n.example"}, 0, "PATCH" + at + ` {"url":"https://n.example"}`, state},
		{[]string{"update", hookID, "--events", "*", "--description", ""}, 0, "PATCH" + at + ` {"description":"","events":["*"]}`, state},
		{[]string{"update", hookID}, 2, "", ""},
		{[]string{"enable", hookID}, 0, "PATCH" + at + ` {"enabled":true}`, state},
		{[]string{"disable", hookID}, 0, "PATCH" + at + ` {"enabled":false}`, state},
		{[]string{"rm", hookID}, 0, "DELETE" + at, "removed\n"},
		{[]string{"rotate", hookID}, 0, "POST" + at + "/rotate-secret", shown},
		{[]string{"test", hookID}, 0, "POST" + at + "/test", firstID + "\n"},
		{[]string{"test", hookID, "--json"}, 0, "POST" + at + "/test", `"delivery_id": "` + firstID + `"`},
		{[]string{"deliveries", hookID, "--limit", "1"}, 0, "GET" + at + "/deliveries?limit=1", "00000001  run.failed  pending  2/5       503   2030-01-02T03:04:05Z  2030-01-02T03:04:00Z  the answer was 503\n"},
		{[]string{"deliveries", hookID, "--limit", "1", "--status", "failed", "--type", "run.failed"}, 0, "GET" + at + "/deliveries?limit=1&status=failed&type=run.failed", "00000001"},
		{[]string{"redeliver", hookID, "00000001"}, 0, "GET" + at + "/deliveries?limit=100, POST" + at + "/deliveries/" + firstID + "/redeliver", firstID + "\n"},
		{[]string{"deliveries", hookID, "--limit", "0"}, 2, "", ""},
		{[]string{"redeliver", hookID, firstID}, 0, "POST" + at + "/deliveries/" + firstID + "/redeliver", firstID + "\n"},
		{[]string{"redeliver", hookID}, 2, "", ""},
		{[]string{"recover", hookID, "--since", "2026-01-02T03:04:05+02:00"}, 0, "POST" + at + `/recover {"since":"2026-01-02T01:04:05Z"}`, "17 deliveries are sent again\n"},
		{[]string{"recover", hookID, "--since", "yesterday"}, 2, "", "--since: must be a time"},
		{[]string{"recover", hookID}, 2, "", ""},
		{[]string{"bogus"}, 2, "", ""},
	} {
		var out, errs bytes.Buffer
		code := execute(t.Context(), append([]string{"webhooks"}, c.args...), strings.NewReader(""), &out, &errs)
		if asked := strings.Join(f.take(), ", "); code != c.code || asked != c.asks || !strings.Contains(out.String()+errs.String(), c.out) {
			t.Errorf("%v: code %d, asked %s\n%s%s\nwant %d, %s\n%s", c.args, code, asked, out.String(), errs.String(), c.code, c.asks, c.out)
		}
	}
}

func TestSince(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]string{
		"90m": "2026-03-01T10:30:00Z", "36h": "2026-02-28T00:00:00Z", "0s": "2026-03-01T12:00:00Z",
		"2026-01-02T15:04:05Z": "2026-01-02T15:04:05Z", "2026-01-02T15:04:05.5-03:00": "2026-01-02T18:04:05.5Z",
		"-5m": "", "": "", "90": "", "2026-01-02": "", "2026-02-30T00:00:00Z": "",
	} {
		got, err := readSince(text, now)
		if (err != nil) != (want == "") || err == nil && got.Format(time.RFC3339Nano) != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

// running is svc listen, until the test says that it has heard enough.
type running struct {
	out, errs *clitest.Output
	stop      context.CancelFunc
	ended     chan int
}

func listensTo(t *testing.T, args ...string) *running {
	t.Helper()
	ctx, stop := context.WithCancel(within(t, time.Minute))
	r := &running{out: &clitest.Output{}, errs: &clitest.Output{}, stop: stop, ended: make(chan int, 1)}
	go func() {
		r.ended <- execute(ctx, append([]string{"listen"}, args...), strings.NewReader(""), r.out, r.errs)
	}()
	t.Cleanup(stop)
	return r
}

// item is an attempt of the n-th delivery.
func item(n int, attempt int) pulled {
	return pulled{DeliveryID: fmt.Sprintf("0193e000-0000-7000-8000-00000000000%d", n), EventID: firstID, Type: "run.failed", Attempt: attempt,
		Signature: fmt.Sprintf("t=1,v1=%d", attempt), Body: fmt.Sprintf(`{"id":"e%d", "data":{"text":"ü <b>"}}`, n)}
}

// What is pulled reaches the server as it is, and what became of it the service,
// with the next pull; at the end the listener is removed.
func TestListenForwards(t *testing.T) {
	f := newFakeHooks(t, []pulled{item(1, 1), item(2, 1), item(3, 1)}, []pulled{}, []pulled{item(2, 2)})
	type request struct{ method, path, media, agent, signature, delivery, body string }
	var mu sync.Mutex
	var got []request
	local := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		req := request{r.Method, r.URL.RequestURI(), r.Header.Get("Content-Type"), r.Header.Get("User-Agent"), r.Header.Get("Svc-Signature"), r.Header.Get("Svc-Delivery-Id"), string(body)}
		got = append(got, req)
		switch {
		case req.delivery == item(3, 1).DeliveryID:
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		case req.delivery == item(2, 1).DeliveryID && req.signature == item(2, 1).Signature:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	}))
	defer local.Close()
	r := listensTo(t, "--events", "run.failed,run.completed", "--forward", local.URL+"/in?a=b")
	eventually(t, within(t, 8*time.Second), "four reports", func() bool { return len(f.reports()) == 4 })
	r.stop()
	if code := <-r.ended; code != 0 || r.errs.String() != "" {
		t.Errorf("code %d %s", code, r.errs.String())
	}
	var want []request
	for _, i := range []pulled{item(1, 1), item(2, 1), item(3, 1), item(2, 2)} {
		want = append(want, request{"POST", "/in?a=b", "application/json", "svc-webhook/" + version, i.Signature, i.DeliveryID, i.Body})
	}
	byID := func(a, b request) int { return strings.Compare(a.delivery+a.signature, b.delivery+b.signature) }
	slices.SortFunc(want, byID)
	slices.SortFunc(got, byID)
	if !slices.Equal(got, want) {
		t.Errorf("forwarded %+v\nwant %+v", got, want)
	}
	reports := f.reports()
	for i := range reports {
		reports[i].DurationMS = 0
	}
	if want := []attempted{{item(1, 1).DeliveryID, 1, 204, "", 0}, {item(2, 1).DeliveryID, 1, 503, "the answer was 503", 0}, {item(3, 1).DeliveryID, 1, 302, "the answer was 302", 0}, {item(2, 2).DeliveryID, 2, 204, "", 0}}; !slices.Equal(reports, want) {
		t.Errorf("reported %+v", reports)
	}
	if asked := f.take(); asked[0] != `POST /v1/webhooks/listeners {"events":["run.failed","run.completed"]}` || asked[len(asked)-1] != "DELETE /v1/webhooks/listeners/"+otherHook {
		t.Errorf("asked %q", asked)
	}
	lines := regexp.MustCompile(`\d\d:\d\d:\d\d `).ReplaceAllString(regexp.MustCompile(` \d+ ms`).ReplaceAllString(r.out.String(), " N ms"), "")
	sorted := strings.Split(strings.TrimSuffix(lines, "\n"), "\n")
	slices.Sort(sorted[2:])
	shown := []string{"listening to *", "secret  whsec_shown", "run.failed " + item(1, 1).DeliveryID + " → 204 N ms", "run.failed " + item(2, 1).DeliveryID + " (attempt 2) → 204 N ms",
		"run.failed " + item(2, 1).DeliveryID + " → 503 N ms", "run.failed " + item(3, 1).DeliveryID + " → 302 N ms"}
	if !slices.Equal(sorted, shown) {
		t.Errorf("shown %q\nwant %q", sorted, shown)
	}
}

// Without a server events are shown, and count as received.
func TestListenShows(t *testing.T) {
	sly := item(1, 1)
	sly.Body = `{"data": "a\u202eb"}`
	sly.Type = "run.\x1bfailed"
	for _, asJSON := range []bool{false, true} {
		f := newFakeHooks(t, []pulled{sly})
		args := []string{}
		if asJSON {
			args = append(args, "--json")
		}
		r := listensTo(t, args...)
		eventually(t, within(t, 8*time.Second), "a report", func() bool { return len(f.reports()) == 1 })
		r.stop()
		if code := <-r.ended; code != 0 || r.errs.String() != "" {
			t.Errorf("code %d %s", code, r.errs.String())
		}
		if got := f.reports()[0]; got.HTTPStatus != 200 || got.Error != "" || got.Attempt != 1 {
			t.Errorf("%+v", got)
		}
		if asked := f.take(); asked[0] != "POST /v1/webhooks/listeners {}" {
			t.Errorf("asked %q", asked)
		}
		out := r.out.String()
		if !asJSON {
			if strings.ContainsAny(out, "\x1b\u202e") || !strings.Contains(out, `run.\u001bfailed `+sly.DeliveryID+"\n    {\"data\":\"a\\u202eb\"}\n") {
				t.Errorf("shown %q", out)
			}
			continue
		}
		var first struct{ Secret, ID string }
		var second struct {
			At         time.Time
			DeliveryID string `json:"delivery_id"`
			HTTPStatus int    `json:"http_status"`
			Event      struct{ Data string }
		}
		dec := json.NewDecoder(strings.NewReader(out))
		if err := errors.Join(dec.Decode(&first), dec.Decode(&second)); err != nil || first.Secret != "whsec_shown" || first.ID != otherHook ||
			second.DeliveryID != sly.DeliveryID || second.HTTPStatus != 200 || second.Event.Data != "a\u202eb" || second.At.IsZero() || strings.Count(out, "\n") != 2 {
			t.Errorf("%v: %s", err, out)
		}
	}
}

// A service that is away for a moment gets every report; one that has forgotten
// the listener ends it.
func TestListenWhenTheServiceIsAway(t *testing.T) {
	away := object{"status": 503, "code": "UNAVAILABLE", "detail": "Storage is not available now."}
	busy := object{"status": 429, "code": "RATE_LIMITED"}
	f := newFakeHooks(t, []pulled{item(1, 1)}, away, busy, away, []pulled{}, []pulled{item(2, 1)})
	r := listensTo(t)
	eventually(t, within(t, 8*time.Second), "two reports", func() bool { return len(f.reports()) == 2 })
	r.stop()
	if code := <-r.ended; code != 0 || f.reports()[0].DeliveryID != item(1, 1).DeliveryID || f.reports()[1].DeliveryID != item(2, 1).DeliveryID {
		t.Errorf("code %d %s, reported %+v", code, r.errs.String(), f.reports())
	}
	for problem, says := range map[string]string{
		"404 NOT_FOUND":    "the listener is gone",
		"401 UNAUTHORIZED": "UNAUTHORIZED",
	} {
		var status int
		var code string
		if _, err := fmt.Sscan(problem, &status, &code); err != nil {
			t.Fatal(err)
		}
		f := newFakeHooks(t, object{"status": status, "code": code})
		r := listensTo(t)
		if code := <-r.ended; code != 1 || !strings.Contains(r.errs.String(), says) {
			t.Errorf("%s: code %d %s", problem, code, r.errs.String())
		}
		if !f.gone {
			t.Errorf("%s: the listener is left", problem)
		}
	}
	// One that stays away is lost.
	f = newFakeHooks(t)
	l := &listening{c: &Client{Base: "http://127.0.0.1:1", HTTP: &http.Client{}, patience: 50 * time.Millisecond}, path: "/x", out: io.Discard, http: forwarder()}
	if err := l.follow(within(t, time.Minute)); err == nil || !strings.Contains(err.Error(), "the service was lost") {
		t.Errorf("%v", err)
	}
}

func TestAttemptsThatFail(t *testing.T) {
	down := "http://" + testkit.Reserved(t) + "/secret-path?token=hidden"
	rude := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		conn.Close()
	}))
	defer rude.Close()
	for name, c := range map[string]struct{ to, says string }{
		"nobody is there": {down, "connection refused"},
		"it hangs up":     {rude.URL + "/hidden", "EOF"},
	} {
		l := &listening{to: c.to, http: forwarder()}
		got := l.attempt(within(t, time.Minute), item(1, 3))
		if got.HTTPStatus != 0 || got.Attempt != 3 || !strings.Contains(got.Error, c.says) || strings.Contains(got.Error, "hidden") {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := plainError(&url.Error{Op: "Post", URL: down, Err: context.DeadlineExceeded}); got != "no answer within 10s" {
		t.Errorf("a server that says nothing: %s", got)
	}
	for text, ok := range map[string]bool{"": true, "http://localhost:3000": true, "https://x.example/in?a=b": true, "localhost:3000": false, "ftp://x": false, "http://": false, "/in": false} {
		if _, err := forwardURL(text); (err == nil) != ok {
			t.Errorf("--forward %q: %v", text, err)
		}
	}
	var out, errs bytes.Buffer
	if code := execute(t.Context(), []string{"listen", "--forward", "localhost:3000"}, strings.NewReader(""), &out, &errs); code != 2 || !strings.Contains(errs.String(), "--forward: must be a URL") {
		t.Errorf("code %d %s", code, errs.String())
	}
}

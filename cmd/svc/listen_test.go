package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"agentsvc/schemas/webhook"
)

// svc listen against the service: what a run reports reaches a local server, which
// trusts it by the secret that was printed.
func TestListenHearsARun(t *testing.T) {
	t.Parallel()
	ctx := within(t, 80*time.Second)
	c := sharedNode(t).tenant("listen")
	agent := c.publish(t, "Agent", object{"model": object{"provider": "simulated", "name": "sim"}})
	out := &logText{}
	secret := regexp.MustCompile(`secret  (whsec_\S+)`)
	heard := make(chan string, 16)
	local := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		printed := secret.FindStringSubmatch(out.String())
		if err == nil && printed == nil {
			err = errors.New("no secret was printed")
		}
		if err == nil {
			err = webhook.Verify(printed[1], r.Header.Get("Svc-Signature"), body, time.Now())
		}
		if err != nil || !isFullID(r.Header.Get("Svc-Delivery-Id")) {
			t.Errorf("%v: %v %s", err, r.Header, body)
		}
		heard <- string(body)
	}))
	defer local.Close()
	listenCtx, stop := context.WithCancel(ctx)
	defer stop()
	cmd := &cobra.Command{}
	cmd.SetContext(listenCtx)
	cmd.SetOut(out)
	cmd.SetErr(out)
	ended := make(chan error, 1)
	go func() { ended <- listen(cmd, c, object{"events": []string{"run.completed"}}, local.URL) }()
	eventually(t, within(t, 8*time.Second), "it listens", func() bool { return secret.MatchString(out.String()) })
	run := c.say(t, ctx, c.thread(t, ctx, agent), "Hello")
	var e envelope
	select {
	case body := <-heard:
		if err := json.Unmarshal([]byte(body), &e); err != nil || e.Type != "run.completed" || !strings.Contains(body, run) {
			t.Errorf("heard %s, %v", body, err)
		}
	case <-ctx.Done():
		t.Fatalf("nothing was heard\n%s", out.String())
	}
	eventually(t, within(t, 8*time.Second), "it is shown", func() bool { return strings.Contains(out.String(), " → 200 ") })
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := c.ask(t, ctx, 200, "GET", "/v1/audit?action=webhook.listener.delete", nil, nil); !strings.Contains(string(got.body), "webhook.listener.delete") {
		t.Errorf("the listener was not removed: %s", got.body)
	}
}

// A pull is one of the calls that the tenant has in a second: only a full page is
// followed by another at once.
func TestPauseAfterAPull(t *testing.T) {
	for n, want := range map[int]time.Duration{0: time.Second, 1: time.Second / 2, 19: time.Second / 2, 20: 0} {
		if got := pauseAfter(n); got != want {
			t.Errorf("after %d: %v, want %v", n, got, want)
		}
	}
}

// A pull whose answer was lost is the same again, so that what was claimed for it comes;
// the next one is another, and later. A listener that is gone need not be removed.
func TestListenPullsTheSameAgain(t *testing.T) {
	answers := []object{
		{"status": 503, "code": "UNAVAILABLE"}, {"status": 409, "code": "IDEMPOTENCY_IN_PROGRESS"}, {"items": []pulled{item(1, 1)}}, {"status": 404, "code": "NOT_FOUND"},
	}
	type ask struct {
		key, body string
		at        time.Time
	}
	var mu sync.Mutex // guards asked
	var asked []ask
	away := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		answer := object{"status": 404, "code": "NOT_FOUND"}
		switch {
		case r.URL.Path == "/v1/webhooks/listeners":
			answer = object{"id": otherHook, "events": []string{"*"}, "secret": "whsec_shown"}
		case r.Method == http.MethodPost && len(asked) < len(answers):
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			answer = answers[len(asked)]
			asked = append(asked, ask{r.Header.Get("Idempotency-Key"), string(body), time.Now()})
		}
		if status, ok := answer["status"].(int); ok {
			w.WriteHeader(status)
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	defer away.Close()
	out, errs := &logText{}, &logText{}
	cmd := &cobra.Command{}
	cmd.SetContext(within(t, time.Minute))
	cmd.SetOut(out)
	cmd.SetErr(errs)
	err := listen(cmd, &client{base: away.URL, key: "svc_test", tenant: "tenant", http: &http.Client{}}, object{}, "")
	if err == nil || !strings.Contains(err.Error(), "the listener is gone") || errs.String() != "" || !strings.Contains(out.String(), item(1, 1).DeliveryID) {
		t.Errorf("%v, said %q and %q", err, errs.String(), out.String())
	}
	if len(asked) != 4 {
		t.Fatalf("asked %+v", asked)
	}
	first, again, last, next := asked[0], asked[1], asked[2], asked[3]
	if len(first.key) < 20 || again.key != first.key || last.key != first.key || last.body != first.body {
		t.Errorf("a repeat is another pull: %+v", asked)
	}
	if next.key == first.key || next.body == first.body || next.at.Sub(last.at) < time.Second/2 {
		t.Errorf("the next is the same, or %v later: %+v", next.at.Sub(last.at), asked)
	}
}

package client

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsvc/cmd/svc/clitest"

	"github.com/spf13/cobra"
)

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
	out, errs := &clitest.Output{}, &clitest.Output{}
	cmd := &cobra.Command{}
	cmd.SetContext(within(t, time.Minute))
	cmd.SetOut(out)
	cmd.SetErr(errs)
	err := Listen(cmd, &Client{Base: away.URL, Key: "svc_test", Tenant: "tenant", HTTP: &http.Client{}}, object{}, "")
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

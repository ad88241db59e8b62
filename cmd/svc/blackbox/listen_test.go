package blackbox

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"agentsvc/cmd/svc/client"
	"agentsvc/cmd/svc/clitest"
	"agentsvc/schemas/webhook"
)

// svc listen against the service: the event of a run reaches a local server, which verifies it with the printed
// secret.
func TestListenDeliversARunsEvent(t *testing.T) {
	t.Parallel()
	ctx := within(t, 80*time.Second)
	c := sharedNode(t).tenant("listen")
	agent := c.publish(t, "Agent", object{"model": object{"provider": "simulated", "name": "sim"}})
	out := &clitest.Output{}
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
	go func() { ended <- client.Listen(cmd, &c.Client, object{"events": []string{"run.completed"}}, local.URL) }()
	eventually(t, within(t, 8*time.Second), "it listens", func() bool { return secret.MatchString(out.String()) })
	run := c.say(t, ctx, c.thread(t, ctx, agent), "Hello")
	var e envelope
	select {
	case body := <-heard:
		if err := json.Unmarshal([]byte(body), &e); err != nil || e.Type != "run.completed" || !strings.Contains(body, run) {
			t.Errorf("received %s, %v", body, err)
		}
	case <-ctx.Done():
		t.Fatalf("no event was received\n%s", out.String())
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

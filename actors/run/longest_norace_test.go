//go:build !race

package run_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"agentsvc/actors/run"
	"agentsvc/schemas/model"
	"agentsvc/schemas/testkit"
)

// The longest possible answer, of the text that grows most when encoded: its step, the run's output and
// the message are one commit.
func TestTheLongestAnswerIsCommitted(t *testing.T) {
	// The commit may take as long as the machine needs.
	w := newWorld(t, simulatedAgent, func(w *world) { w.commit = testkit.Patience })
	long := strings.Repeat("\x01", run.MaxSaid)
	w.models.next(func(_ context.Context, _ *model.Request, sink model.Sink) (*model.Result, error) {
		sink.Text(long)
		return &model.Result{Text: long, Finish: model.FinishStop, TokensOut: 1}, nil
	})
	r := w.post(w.newThread(), "x")
	began := time.Now()
	if got := w.ends(r); got != "succeeded" {
		t.Fatal(got, w.text(`SELECT error_message FROM runs WHERE id = $1`, r))
	}
	t.Logf("committed in %s", time.Since(began))
	w.is("1", `SELECT count(*)::text FROM run_steps WHERE run_id = $1`, r)
	w.is(fmt.Sprint(len(long)), `SELECT length(content)::text FROM messages WHERE run_id = $1 AND role = 'assistant'`, r)
	w.models.next(func(_ context.Context, _ *model.Request, sink model.Sink) (*model.Result, error) {
		sink.Text(long)
		sink.Text("x")
		return &model.Result{Text: long + "x", Finish: model.FinishStop}, nil
	})
	r = w.post(w.newThread(), "x")
	w.ends(r)
	w.is("MODEL_ERROR", `SELECT error_code FROM runs WHERE id = $1`, r)
}

// The longest possible answer is reported whole.
func TestTheLongestAnswerIsReported(t *testing.T) {
	w := newWorld(t, simulatedAgent, withEndpoint, func(w *world) { w.commit = testkit.Patience })
	long := strings.Repeat("\x01", run.MaxSaid)
	w.models.next(func(_ context.Context, _ *model.Request, sink model.Sink) (*model.Result, error) {
		sink.Text(long)
		return &model.Result{Text: long, Finish: model.FinishStop, TokensOut: 1}, nil
	})
	if got := w.ends(w.post(w.newThread(), "x")); got != "succeeded" {
		t.Fatal(got)
	}
	var body []byte
	if err := w.pool.QueryRow(t.Context(), `SELECT body FROM webhook_deliveries`).Scan(&body); err != nil {
		t.Fatal(err)
	}
	var e struct {
		Data struct{ Output struct{ Text string } }
	}
	if err := json.Unmarshal(body, &e); err != nil || e.Data.Output.Text != long {
		t.Errorf("of %d bytes %d are reported, %v", len(long), len(e.Data.Output.Text), err)
	}
}

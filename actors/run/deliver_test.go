package run_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsvc/actors/run"
	"agentsvc/persistence/journal"
	"agentsvc/schemas/id"
	"agentsvc/schemas/model"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/testkit"
)

// shelf is a store of artifacts.
type shelf struct {
	mu    sync.Mutex
	files map[id.ArtifactID][]byte
	tries int
	// put, if set, runs before a file is stored.
	put func(ctx context.Context) error
}

func (s *shelf) Store(ctx context.Context, _ id.TenantID, a id.ArtifactID, content []byte) (sum [32]byte, err error) {
	s.mu.Lock()
	s.tries++
	put := s.put
	s.mu.Unlock()
	if put != nil {
		if err := put(ctx); err != nil {
			return sum, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[a] = bytes.Clone(content)
	return sum, nil
}

func (s *shelf) tried() int { s.mu.Lock(); defer s.mu.Unlock(); return s.tries }

func (s *shelf) meets(put func(context.Context) error) { s.mu.Lock(); s.put = put; s.mu.Unlock() }

func receives(t *testing.T, c chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(testkit.Patience):
		t.Fatal("nothing came")
	}
}

func withShelf(w *world) { w.shelf = &shelf{files: map[id.ArtifactID][]byte{}} }

// wants posts a message whose answer is also rendered as a file.
func (w *world) wants(kind, answer string) id.RunID {
	w.t.Helper()
	w.models.next(func(_ context.Context, _ *model.Request, sink model.Sink) (*model.Result, error) {
		sink.Text(answer)
		return &model.Result{Text: answer, Finish: model.FinishStop, TokensOut: 1}, nil
	})
	th := w.newThread()
	m := w.message(th, "x")
	m.Input = json.RawMessage(`{"text":"x","options":{"deliverable":"` + kind + `"}}`)
	if got := w.ask(w.address(msg.KindThread, th.UUID), m); got != any(msg.Posted{Run: m.Run, Message: m.Message}) {
		w.t.Fatalf("replied %+v", got)
	}
	return m.Run
}

const report = "# Report\n\n| a | n |\n|---|---|\n| x | 1 |\n"

func TestADeliverableIsMadeBeforeTheRunSucceeds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, simulatedAgent, withShelf)
	for _, kind := range []string{"xlsx", "pptx", "html"} {
		r := w.wants(kind, report)
		if got := w.ends(r); got != "succeeded" {
			t.Fatal(kind, got, w.text(`SELECT error_message FROM runs WHERE id = $1`, r))
		}
		w.is(kind+" Report."+kind, `SELECT kind || ' ' || name FROM artifacts WHERE run_id = $1`, r)
		w.is("true", `SELECT (a.created_at = r.finished_at)::text FROM artifacts a JOIN runs r ON r.id = a.run_id WHERE r.id = $1`, r)
		a, err := id.Parse(w.text(`SELECT id::text FROM artifacts WHERE run_id = $1`, r))
		if err != nil || len(w.shelf.files[id.ArtifactID{UUID: a}]) == 0 {
			t.Errorf("%s: no file, %v", kind, err)
		}
		w.is("1", `SELECT count(*)::text FROM messages WHERE run_id = $1 AND role = 'assistant'`, r)
		w.is("1", `SELECT count(*)::text FROM run_steps WHERE run_id = $1`, r)
		w.sameReplayed(r)
	}
}

func TestADeliverableThatCannotBeMade(t *testing.T) {
	t.Parallel()
	w := newWorld(t, simulatedAgent, withShelf)
	fails := func(r id.RunID, want string) {
		t.Helper()
		w.ends(r)
		w.is("OUTPUT_INVALID", `SELECT error_code FROM runs WHERE id = $1`, r)
		if got := w.text(`SELECT error_message FROM runs WHERE id = $1`, r); !strings.HasPrefix(got, "The deliverable could not be made") || !strings.Contains(got, want) {
			t.Errorf("%q", got)
		}
		w.is("0", `SELECT count(*)::text FROM artifacts WHERE run_id = $1`, r)
		w.is("0", `SELECT count(*)::text FROM messages WHERE run_id = $1 AND role = 'assistant'`, r)
	}
	fails(w.wants("pptx", strings.Repeat("# a\n", 2000)), "slides")
	fails(w.wants("docx", "x"), "kind")
	w.shelf.meets(func(context.Context) error { return errors.New("broken") })
	fails(w.wants("html", "x"), "")
	w.shelf.meets(func(context.Context) error { panic("broken") })
	fails(w.wants("html", "x"), "")
}

// A store that is away is tried again until it is back.
func TestAStoreThatIsAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, simulatedAgent, withShelf)
	w.shelf.meets(func(context.Context) error {
		if w.shelf.tried() < 4 {
			return problem.Unavailable("away", time.Second)
		}
		return nil
	})
	if got := w.ends(w.wants("html", report)); got != "succeeded" || w.shelf.tried() != 4 {
		t.Errorf("%s after %d tries", got, w.shelf.tried())
	}
	w.is("1", `SELECT count(*)::text FROM artifacts`)
}

func TestAStoreThatStaysAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, strings.Replace(simulatedAgent, `{`, `{"limits":{"max_seconds":1},`, 1), withShelf)
	w.shelf.meets(func(context.Context) error { return problem.Unavailable("away", time.Second) })
	r := w.wants("html", report)
	w.ends(r)
	w.is("LIMIT_EXCEEDED", `SELECT error_code FROM runs WHERE id = $1`, r)
}

// stuck makes the store wait for its end, and says when it is asked.
func (s *shelf) stuck() (asked chan struct{}) {
	asked = make(chan struct{}, 16)
	s.meets(func(ctx context.Context) error {
		asked <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	return asked
}

func TestACancelWhileTheFileIsMade(t *testing.T) {
	t.Parallel()
	w := newWorld(t, simulatedAgent, withShelf)
	asked := w.shelf.stuck()
	r := w.wants("html", report)
	receives(t, asked)
	w.cancels(r)
	if got := w.ends(r); got != "cancelled" {
		t.Error(got)
	}
	w.is("0", `SELECT count(*)::text FROM artifacts`)
}

// A crash between the final text and the file, and one between the file and the commit, ask no model
// again, and make one artifact.
func TestACrashWhileTheFileIsMade(t *testing.T) {
	t.Parallel()
	w := newWorld(t, simulatedAgent, withShelf)
	asked := w.shelf.stuck()
	r := w.wants("html", report)
	receives(t, asked)
	w.is("running", `SELECT status FROM runs WHERE id = $1`, r)
	w.restart()
	w.wake(r)
	receives(t, asked)
	w.shelf.meets(nil)
	var once sync.Once
	lost := make(chan struct{}, 1)
	w.writer.mu.Lock()
	w.writer.fails = func(c *journal.Commit) error {
		err := error(nil)
		if len(c.Rows) > 2 { // the run, its artifact and its reply
			once.Do(func() { err = journal.ErrConflict; lost <- struct{}{} })
		}
		return err
	}
	w.writer.mu.Unlock()
	w.restart()
	w.wake(r)
	receives(t, lost)
	w.wake(r)
	if got := w.ends(r); got != "succeeded" {
		t.Fatal(got)
	}
	w.is("1", `SELECT count(*)::text FROM artifacts WHERE run_id = $1`, r)
	w.is("1", `SELECT count(*)::text FROM run_steps WHERE run_id = $1`, r)
	w.is("Report", `SELECT substring(output ->> 'text' FROM 3 FOR 6) FROM runs WHERE id = $1`, r)
	if len(w.shelf.files) != 2 {
		t.Errorf("%d files", len(w.shelf.files))
	}
}

func TestTheStateOfADelivery(t *testing.T) {
	t.Parallel()
	k := run.Kept{Ready: true, Delivers: true}
	got, err := run.DecodeKept(k.Encode())
	if err != nil || got != k || !bytes.Contains(k.Encode(), []byte(`"delivers":true`)) {
		t.Errorf("%+v, %v", got, err)
	}
}

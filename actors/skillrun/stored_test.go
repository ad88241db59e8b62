package skillrun_test

import (
	"context"
	"flag"
	"path/filepath"
	"slices"
	"testing"

	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/store"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
	"agentsvc/schemas/testkit"
)

// The files testdata/stored-*.jsonl are rows of runs as an earlier build left them (pgtest.Stored).
// -stored=NAME writes one.
var stored = flag.String("stored", "", "write the rows of this stored run anew")

// storedRows are the rows of a run.
func (w *world) storedRows() *pgtest.Stored {
	at := func(r *pgtest.StoredRow) vault.AAD {
		return store.SkillRunArgsAt(id.TenantID{UUID: r.ID(w.t, "tenant_id")}, id.SkillRunID{UUID: r.ID(w.t, "id")})
	}
	return &pgtest.Stored{
		Tables: []string{"tenants", "agents", "runs", "run_steps", "browser_skills", "browser_skill_runs", "approvals", "timers"},
		Sealed: map[string][]string{"browser_skill_runs": {"args"}},
		Open:   func(r *pgtest.StoredRow, _ string, sealed []byte) ([]byte, error) { return w.keys.Open(at(r), sealed) },
		Seal:   func(r *pgtest.StoredRow, _ string, plain []byte) ([]byte, error) { return w.keys.Seal(at(r), plain) },
	}
}

// restore inserts the rows of a file and returns the call that they are of.
func (w *world) restore(file string) *call {
	w.t.Helper()
	c := &call{w: w, args: []byte(`{"amount":7,"reason":"because"}`)}
	for _, r := range w.storedRows().Restore(w.t, w.pool, file) {
		switch r.Table {
		case "tenants":
			w.tenant = id.TenantID{UUID: r.ID(w.t, "id")}
		case "agents":
			w.agent = id.AgentID{UUID: r.ID(w.t, "id")}
		case "browser_skills":
			w.of = id.SkillID{UUID: r.ID(w.t, "id")}
		case "browser_skill_runs":
			c.start.Run, c.run = id.SkillRunID{UUID: r.ID(w.t, "id")}, id.RunID{UUID: r.ID(w.t, "agent_run_id")}
			c.approval = id.ApprovalID{UUID: r.ID(w.t, "approval_id")}
		}
	}
	w.exec(`UPDATE approvals SET expires_at = now() + interval '1 hour'`)
	return c
}

// held blocks a part of the work until the test's end, and says when it began.
func held(t *testing.T) (began chan struct{}, part func(context.Context)) {
	began = make(chan struct{})
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	return began, func(ctx context.Context) {
		close(began)
		select {
		case <-over:
		case <-ctx.Done():
		}
	}
}

// storedRuns are runs of which there are rows: how they came to be, and how they go on.
var storedRuns = []struct {
	name   string
	begin  func(t *testing.T, w *world, s *site) // up to the rows
	goesOn func(c *call)
	row    string
	clicks []string
	undone int
	record string // values of the preview, steps, checks, compensation
}{
	{
		name: "filling", // its process ended while it filled the form
		begin: func(t *testing.T, w *world, s *site) {
			began, part := held(t)
			s.onFill = func(ctx context.Context, _ int) { part(ctx) }
			w.calls(w.node(s), w.agentRun(), 7).begins()
			<-began
		},
		goesOn: func(c *call) {
			c.becomes("prepared, held")
			c.asked(c.args)
			c.approves()
		},
		row: "succeeded, ended, held", clicks: []string{"7"}, record: "7 2 1",
	},
	{
		name:  "waiting", // for people
		begin: func(_ *testing.T, w *world, s *site) { w.calls(w.node(s), w.agentRun(), 7).prepared() },
		goesOn: func(c *call) {
			if got := c.row(); got != "prepared, held" {
				c.w.t.Errorf("it is %s", got)
			}
			c.approves()
		},
		row: "succeeded, ended, held", clicks: []string{"7"}, record: "7 2 1",
	},
	{
		name: "refilling", // with the values that a person edited
		begin: func(t *testing.T, w *world, s *site) {
			began, part := held(t)
			s.onFill = func(ctx context.Context, n int) {
				if n == 2 {
					part(ctx)
				}
			}
			c := w.calls(w.node(s), w.agentRun(), 7).prepared()
			c.args = []byte(`{"amount":9}`)
			c.decides("edited", c.args)
			c.must(c.commit())
			<-began
		},
		goesOn: func(*call) {},
		row:    "succeeded, ended, held", clicks: []string{"9"}, record: "9 2 1",
	},
	{
		name: "committing", // the receipt is written, and the click was not answered
		begin: func(t *testing.T, w *world, s *site) {
			began, part := held(t)
			s.onClick = part
			w.calls(w.node(s), w.agentRun(), 7).prepared().approves()
			<-began
		},
		goesOn: func(*call) {},
		row:    "committing unknown_outcome, ended, held", record: "7 1 0",
	},
	{
		name: "committed", // the checks were cut off
		begin: func(t *testing.T, w *world, s *site) {
			began, part := held(t)
			s.onVerify = part
			c := w.calls(w.node(s), w.agentRun(), 7).prepared().approves()
			<-began
			c.becomes("committed, held")
		},
		goesOn: func(*call) {},
		row:    "committed unknown_outcome, ended, held", record: "7 2 0",
	},
	{
		name: "compensating", // a check failed, and the compensation was cut off: it is not done twice
		begin: func(t *testing.T, w *world, s *site) {
			began, part := held(t)
			s.fails.Store(true)
			s.onUndo = part
			w.calls(w.node(s), w.agentRun(), 7).prepared().approves()
			<-began
		},
		goesOn: func(*call) {},
		row:    "verification_failed verification_failed, ended, held", record: "7 2 1 The compensation steps were interrupted.",
	},
}

// Runs that an earlier build began go on: rows that it left are read.
func TestStoredRunsGoOn(t *testing.T) {
	t.Parallel()
	for _, c := range storedRuns {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join("testdata", "stored-"+c.name+".jsonl")
			if *stored == c.name {
				w := newWorld(t)
				c.begin(t, w, newSite())
				w.storedRows().Write(t, w.pool, file)
			}
			w, s := open(t, pgtest.New(t)), newSite()
			run := w.restore(file)
			run.n = w.node(s)
			w.sweeps(run.n)
			c.goesOn(run)
			run.becomes(c.row)
			if got := s.clicked(run.id()); !slices.Equal(got, c.clicks) {
				t.Errorf("clicked %v, want %v", got, c.clicks)
			}
			if s.undone[run.id()] != c.undone {
				t.Errorf("compensated %d times", s.undone[run.id()])
			}
			if got := w.text(`SELECT concat_ws(' ', precommit -> 'values' ->> 'amount', json_array_length(steps), json_array_length(verification), compensation ->> 'error')
				FROM browser_skill_runs`); got != c.record {
				t.Errorf("record %q, want %q", got, c.record)
			}
			testkit.Eventually(t, "all pages are closed", func() bool { return s.pages() == 0 })
		})
	}
}

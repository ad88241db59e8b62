package engine

import (
	"slices"
	"testing"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// Standing counts messages and owed replies, and finds the newest open run.
func TestStanding(t *testing.T) {
	w := newWorld(t)
	for _, row := range []struct {
		name     string
		runs     []string
		messages int
		owed     int
		open     int // which of runs is the newest open one; -1: none
	}{
		{"nothing", nil, 0, 0, -1},
		{"no run has a message yet", []string{"queued"}, 0, 1, 0},
		{"all have ended", []string{"succeeded", "failed"}, 3, 0, -1},
		{"the newest is open", []string{"succeeded", "queued"}, 2, 1, 1},
		{"an older one is open", []string{"waiting_approval", "failed"}, 2, 1, 0},
		{"several are open", []string{"waiting_approval", "running", "queued", "failed"}, 5, 3, 2},
	} {
		t.Run(row.name, func(t *testing.T) {
			th, next := w.thread(), w.thread()
			var runs []id.RunID
			// In reverse order: the newest run is the one with the last position.
			for i := len(row.runs) - 1; i >= 0; i-- {
				runs = append([]id.RunID{w.run(th, int64(2*i+1), row.runs[i])}, runs...)
			}
			w.messages(th, row.messages)
			w.messages(next, 7)
			beside := w.run(next, 99, "running")
			for _, asked := range append(slices.Clone(runs), beside, id.RunID{UUID: id.New(th.Shard())}) {
				s, err := w.store.Standing(t.Context(), w.tenant, th, asked)
				if err != nil || s.Messages != row.messages || s.Owed != row.owed {
					t.Fatalf("%+v, %v", s, err)
				}
				if row.open < 0 && (s.Open != nil || s.OpenStatus != nil) {
					t.Errorf("open is %v, %v", s.Open, s.OpenStatus)
				}
				if row.open >= 0 && (s.Open == nil || *s.Open != runs[row.open] || s.OpenStatus == nil || *s.OpenStatus != lifecycle.RunStatus(row.runs[row.open])) {
					t.Errorf("open is %v, %v", s.Open, s.OpenStatus)
				}
				before := slices.Contains(runs, asked)
				accepted, err := w.store.Accepted(t.Context(), w.tenant, th, asked)
				if err != nil || s.Before != before || accepted != before {
					t.Errorf("run %s: before %v, accepted %v, %v; want %v", asked, s.Before, accepted, err, before)
				}
			}
		})
	}
}

// messages adds n messages to the thread.
func (w *world) messages(th id.ThreadID, n int) {
	w.t.Helper()
	w.exec(`INSERT INTO messages (tenant_id, thread_id, seq, id, role, content, created_at) SELECT $1, $2, n, gen_random_uuid(), 'user', 'x', now() FROM generate_series(1, $3) n`, w.tenant, th, n)
}

// A run is accepted in its own thread and tenant only, whatever its status.
func TestAccepted(t *testing.T) {
	w := newWorld(t)
	th, other := w.thread(), w.thread()
	w.messages(th, 2)
	for _, status := range []string{"queued", "running", "waiting_approval", "succeeded", "failed"} {
		r := w.run(th, 1, status)
		for _, row := range []struct {
			name   string
			tenant id.TenantID
			thread id.ThreadID
			run    id.RunID
			want   bool
		}{
			{"its own thread", w.tenant, th, r, true},
			{"another thread", w.tenant, other, r, false},
			{"another tenant", w.other, th, r, false},
			{"another run", w.tenant, th, id.RunID{UUID: id.New(th.Shard())}, false},
		} {
			got, err := w.store.Accepted(t.Context(), row.tenant, row.thread, row.run)
			if err != nil || got != row.want {
				t.Errorf("%s, %s: %v, %v", status, row.name, got, err)
			}
			s, err := w.store.Standing(t.Context(), row.tenant, row.thread, row.run)
			if err != nil || s.Before != row.want {
				t.Errorf("%s, %s: %+v, %v", status, row.name, s, err)
			}
			if row.tenant == w.other && (s.Messages != 0 || s.Owed != 0 || s.Open != nil) {
				t.Errorf("another tenant's thread: %+v", s)
			}
		}
		w.exec(`DELETE FROM runs WHERE id = $1`, r)
	}
	w.exec(`UPDATE threads SET deleted_at = now() WHERE id = $1`, th)
	r := w.run(th, 1, "succeeded")
	if got, err := w.store.Accepted(t.Context(), w.tenant, th, r); err != nil || !got {
		t.Errorf("a deleted thread: %v, %v", got, err)
	}
}

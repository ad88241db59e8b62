package feed

import (
	"context"
	"fmt"
)

// Ailment is one invariant of what is stored, and how often it is broken.
type Ailment struct {
	Check   string
	Count   int
	Example string // a run, timer or approval, empty when none
}

// checks are the invariants that the database can tell by itself, in the order
// in which they are shown.
var checks = []struct{ check, query string }{
	{"running runs without an open step", "doctor_running_without_step"},
	{"ended runs with an open step", "doctor_ended_with_open_step"},
	{"runs whose steps have a gap", "doctor_step_gap"},
	{"succeeded runs of a thread without a reply", "doctor_succeeded_without_reply"},
	{"timers overdue for more than a minute", "doctor_overdue_timers"},
	{"runs queued for more than a minute that nothing holds back", "doctor_stuck_queue"},
	{"waiting runs that nobody wakes", "doctor_waiting_for_nobody"},
	{"waiting steps without an approval", "doctor_waiting_step_without_approval"},
	{"pending approvals whose run does not wait", "doctor_pending_without_waiting_run"},
	{"pending approvals that do not expire", "doctor_pending_without_expiry"},
}

// Diagnose checks every invariant over all tenants. It reads whole tables: it is
// for an operator's command, not for a loop.
func (s *Sweep) Diagnose(ctx context.Context) ([]Ailment, error) {
	out := make([]Ailment, 0, len(checks))
	for _, c := range checks {
		a := Ailment{Check: c.check}
		if err := s.pool.QueryRow(ctx, queries.Get(c.query)).Scan(&a.Count, &a.Example); err != nil {
			return nil, fmt.Errorf("%s: %w", c.check, err)
		}
		out = append(out, a)
	}
	return out, nil
}

package feed

import (
	"context"
	"fmt"
)

// Check is an invariant of the stored rows. SQL counts the rows that violate it, over all
// tenants, and names one of them.
type Check struct{ Name, SQL string }

// Ailment is the result of a check: the number of rows that violate its invariant.
type Ailment struct {
	Check   string
	Count   int
	Example string // a run, timer or approval, empty when none
}

// TimerChecks are the invariants of the timers of all kinds.
var TimerChecks = []Check{{"timers overdue for more than a minute", queries.Get("doctor_overdue_timers")}}

// Diagnose runs the checks. It reads whole tables, so it is for commands of an operator.
func (s *Sweep) Diagnose(ctx context.Context, checks []Check) ([]Ailment, error) {
	out := make([]Ailment, 0, len(checks))
	for _, c := range checks {
		a := Ailment{Check: c.Name}
		if err := s.pool.QueryRow(ctx, c.SQL).Scan(&a.Count, &a.Example); err != nil {
			return nil, fmt.Errorf("%s: %w", c.Name, err)
		}
		out = append(out, a)
	}
	return out, nil
}

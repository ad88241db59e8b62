package membership

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"agentsvc/schemas/id"
)

// Reasons for marking a member dead.
const (
	whyLapsed  = "lease_lapsed"
	whyRefuses = "refuses_and_missed_a_beat"
)

// death is a member to mark dead, in the state in which it was read.
type death struct {
	seen
	why string
}

// doomed returns the members of one read that must be marked dead. refused says when, by
// Postgres' clock, a member's port last refused a connection. A member that has renewed since
// is alive, just not reachable from here. A row that has not changed for its own lease has
// lapsed, also if Postgres' clock was set back and its end is far off.
func doomed(all []seen, self id.MemberID, refused map[id.MemberID]time.Time) []death {
	var out []death
	for _, s := range all {
		if s.ID == self || s.Dead {
			continue
		}
		at, refuses := refused[s.ID]
		switch {
		case s.LeaseUntil.Before(s.Clock), s.still > s.Lease:
			out = append(out, death{s, whyLapsed})
		case refuses && at.After(s.renewed()) && s.Clock.Sub(s.renewed()) > s.Lease/2:
			out = append(out, death{s, whyRefuses})
		}
	}
	return out
}

// marker marks the members that were found dead.
func (m *Membership) marker(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case due := <-m.deaths:
			for _, d := range due {
				m.bury(ctx, d)
			}
			// Publish the new list without waiting for the next read.
			ctx, cancel := context.WithTimeout(ctx, m.cfg.Lease/3)
			_, _ = m.refresh(ctx) // if it fails, the next read does it
			cancel()
		}
	}
}

// bury marks one member dead and logs it, unless another member was first or the member has
// renewed. If the row stays locked, the next read tries again.
func (m *Membership) bury(ctx context.Context, d death) {
	patience := m.cfg.Lease / 3
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	log := m.cfg.Log.With().Stringer("member", d.ID).Str("address", d.Address).Str("why", d.why).Time("lease_until", d.LeaseUntil).Logger()
	marked := false
	err := pgx.BeginFunc(ctx, m.pool, func(tx pgx.Tx) error {
		var backend int32
		if err := tx.QueryRow(ctx, queries.Get("patience"), milliseconds(patience)).Scan(&backend, nil); err != nil {
			return err
		}
		marking := make(chan error, 1)
		go func() {
			tag, err := tx.Exec(ctx, queries.Get("mark_dead"), d.ID, d.LeaseUntil)
			marked = tag.RowsAffected() == 1
			marking <- err
		}()
		for {
			wait := time.NewTimer(patience / 3)
			select {
			case err := <-marking:
				wait.Stop()
				return err
			case <-wait.C:
				m.cut(ctx, backend)
			}
		}
	})
	switch {
	case err != nil && ctx.Err() == nil:
		log.Warn().Err(err).Msg("member not marked dead yet")
	case err == nil && marked:
		deathsMarked.WithLabelValues(d.why).Inc()
		log.Warn().Msg("member declared dead")
	}
}

// cut ends the commits of a stopped process that block its mark: they have passed their fence
// and would hold their rows, and the rows that they changed, indefinitely.
func (m *Membership) cut(ctx context.Context, waiting int32) {
	var ended int
	err := pgx.BeginFunc(ctx, m.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, queries.Get("as_login")); err != nil {
			return err
		}
		return tx.QueryRow(ctx, queries.Get("cut"), waiting).Scan(&ended)
	})
	if err != nil {
		m.cfg.Log.Warn().Err(err).Msg("commits of a lapsed member not looked for")
	} else if ended > 0 {
		m.cfg.Log.Warn().Int("commits", ended).Msg("commits of a lapsed member cut off")
	}
}

// milliseconds formats d for Postgres' settings; it is at least 1, since 0 means no limit.
func milliseconds(d time.Duration) string {
	return strconv.FormatInt(max(1, d.Milliseconds()), 10)
}

package membership

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"agentsvc/schemas/id"
)

// seen is a row of members as one read saw it.
type seen struct {
	ID         id.MemberID
	Address    string
	Version    string
	Draining   bool
	Lease      time.Duration
	LeaseUntil time.Time
	Dead       bool
	Clock      time.Time
}

func (s seen) renewed() time.Time { return s.LeaseUntil.Add(-s.Lease) }

// told is the state last reported to the callbacks.
type told struct {
	members  []Member
	draining bool
}

// refresh reads the rows and updates the list of living members. Only one read runs at a time,
// so that a later list is a newer one.
func (m *Membership) refresh(ctx context.Context) ([]seen, error) {
	if err := enter(ctx, m.refreshing); err != nil {
		return nil, err
	}
	defer leave(m.refreshing)
	return m.refreshFrom(ctx, m.pool)
}

// Refresh reads the list again: afterwards Members includes every member that had joined before
// the call.
func (m *Membership) Refresh(ctx context.Context) error {
	_, err := m.refresh(ctx)
	return err
}

// refreshFrom reads the list through db, while the caller holds refreshing. If its own row is missing
// it changes nothing: the beat finds out why.
func (m *Membership) refreshFrom(ctx context.Context, db querier) ([]seen, error) {
	rows, err := db.Query(ctx, queries.Get("living"))
	if err != nil {
		return nil, err
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByName[seen])
	if err != nil {
		return nil, err
	}
	var list []Member
	self := false
	for _, s := range all {
		if !s.Dead {
			list = append(list, Member{s.ID, s.Address, s.Version, s.Draining, s.LeaseUntil})
			self = self || s.ID == m.cfg.Member
		}
	}
	if !self {
		signal(m.gone)
		return nil, errFenced
	}
	before := m.members.Swap(&list)
	if before == nil || !same(*before, list) {
		m.drop(list)
		membersAlive.Set(float64(len(list)))
		signal(m.changes)
	}
	return all, nil
}

// same reports whether two lists are equal except for the ends of leases.
func same(a, b []Member) bool {
	return slices.EqualFunc(a, b, func(x, y Member) bool {
		x.LeaseUntil, y.LeaseUntil = time.Time{}, time.Time{}
		return x == y
	})
}

// drop deletes the refusals of processes that are no longer members.
func (m *Membership) drop(list []Member) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for who := range m.refused {
		if !slices.ContainsFunc(list, func(o Member) bool { return o.ID == who }) {
			delete(m.refused, who)
		}
	}
}

// survey reads the list, and passes the members to mark dead to the marker. It also measures
// Postgres' clock, more precisely than a beat, which includes a commit.
func (m *Membership) survey(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Lease/3)
	defer cancel()
	sent := time.Now()
	all, err := m.refresh(ctx)
	if err != nil {
		return // the beat reports the error; the list stays
	}
	received := time.Now()
	m.measured(sent, received, all[0].Clock)
	if m.cfg.Address == "" || !m.beat.mayMark(sent, received, m.cfg.Lease) {
		return
	}
	m.mu.Lock()
	due := doomed(all, m.cfg.Member, m.refused)
	m.mu.Unlock()
	if len(due) == 0 {
		return
	}
	select {
	case m.deaths <- due:
	default: // the marker is busy; the next read finds them again
	}
}

// teller calls the callbacks, one at a time.
func (m *Membership) teller(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.changes:
			m.tell()
		}
	}
}

// tell reports what has changed since the last call.
func (m *Membership) tell() {
	list := m.Members()
	i := slices.IndexFunc(list, func(o Member) bool { return o.ID == m.cfg.Member })
	if on := list[i].Draining; on != m.told.draining {
		m.told.draining = on
		m.cfg.Log.Info().Bool("draining", on).Msg("draining changed")
		if m.cfg.OnDrain != nil {
			m.cfg.OnDrain(on)
		}
	}
	if same(list, m.told.members) {
		return
	}
	m.told.members = list
	m.cfg.Log.Info().Int("members", len(list)).Msg("members changed")
	if m.cfg.OnMembers != nil {
		m.cfg.OnMembers(slices.Clone(list))
	}
}

package membership

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
)

// refreshEvery is the time between two reads of the list by a member with peers.
const refreshEvery = 250 * time.Millisecond

// beat is the loop's state.
type beat struct {
	forgot  int64     // the last revocation that was handled
	sent    time.Time // when the last successful beat was sent
	outage  bool      // no beat has succeeded since one failed
	failing error     // the last beat's error
	quiet   time.Time // until then no member is marked dead
	twin    bool      // another member has this one's address
}

// renewed records a success. fresh means the first one, the first after an outage, or one
// that an outage delayed.
func (b *beat) renewed(sent time.Time, lease time.Duration, fresh bool) {
	now := time.Now()
	if fresh || b.outage {
		b.quiet = now.Add(lease)
	}
	b.sent, b.outage = sent, false
}

// mayMark reports whether members may be marked dead by a read of the list that was sent and
// received at these times: Postgres must have been available to the others as it was to us.
func (b *beat) mayMark(sent, received time.Time, lease time.Duration) bool {
	return !b.outage && !received.Before(b.quiet) && received.Sub(sent) <= lease/3 && received.Sub(b.sent) <= lease/2
}

// measured takes a reading of Postgres' clock. If the clock was set, the ends of leases in the
// rows are at another distance than their holders count on: no member is marked dead until each
// living one has had a lease's time to renew.
func (m *Membership) measured(sent, received, theirs time.Time) {
	moved := m.clock.measured(sent, received, theirs, false)
	if moved.Abs() <= m.cfg.Lease/6 {
		return
	}
	m.beat.quiet = received.Add(m.cfg.Lease)
	m.cfg.Log.Warn().Dur("by", moved).Msg("the clock of Postgres was set, no member is declared dead for a lease")
}

// loop sends the beats and reads the list.
func (m *Membership) loop(ctx context.Context) {
	beats := time.NewTicker(m.cfg.Lease / 3)
	defer beats.Stop()
	looks := time.NewTimer(m.pause())
	defer looks.Stop()
	for {
		due := false
		select {
		case <-ctx.Done():
			return
		case <-beats.C:
			due = true
		case <-m.gone:
			due = true
		case <-looks.C:
			looks.Reset(m.pause())
			select {
			case <-beats.C: // takes precedence
				due = true
			default:
				if !m.beat.outage { // during an outage only the beat queries the server
					m.survey(ctx)
				}
			}
		}
		if due && !m.renew(ctx) {
			return
		}
	}
}

// pause returns the time until the next read of the list. It varies, so that members spread
// their reads.
func (m *Membership) pause() time.Duration {
	every := m.cfg.Lease / 3
	if m.cfg.Address != "" {
		every = min(refreshEvery, every)
	}
	return time.Duration(float64(every) * (0.8 + 0.3*rand.Float64()))
}

// renew beats. If the beat handled revocations it beats once more, so that the row says so.
// It returns false if the lease is lost.
func (m *Membership) renew(ctx context.Context) bool {
	for range 2 {
		acted, err := m.beatOnce(ctx)
		switch {
		case ctx.Err() != nil:
			return false
		case errors.Is(err, errFenced):
			m.fenced.Store(true)
			m.quit()
			m.cfg.Log.Error().Stringer("member", m.cfg.Member).Msg("this process was declared dead")
			if m.cfg.OnFenced != nil {
				m.cfg.OnFenced()
			}
			return false
		case err != nil:
			beatsFailed.Inc()
			if m.beat.failing == nil {
				m.cfg.Log.Warn().Err(err).Msg("lease not renewed")
			}
			m.beat.failing, m.beat.outage = err, true
			m.failing.Store(true)
			return true
		}
		if m.beat.failing != nil {
			m.cfg.Log.Info().Msg("lease renewed again")
			m.beat.failing = nil
			m.failing.Store(false)
		}
		if !acted {
			return true
		}
	}
	return true
}

// beatOnce renews the lease once. It has half a lease, so that after a beat that hung there
// is time for another.
func (m *Membership) beatOnce(ctx context.Context) (acted bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Lease/2)
	defer cancel()
	var clock time.Time
	var counter int64
	sent := time.Now()
	err = m.pool.QueryRow(ctx, queries.Get("beat"), m.cfg.Member, m.cfg.Lease, m.beat.forgot).Scan(&clock, &counter)
	received := time.Now()
	if errors.Is(err, pgx.ErrNoRows) {
		return false, errFenced
	}
	if err != nil {
		return false, fmt.Errorf("renew the lease: %w", err)
	}
	m.measured(sent, received, clock)
	if counter != m.beat.forgot {
		if m.cfg.OnRevoked != nil {
			if err := m.cfg.OnRevoked(ctx, counter); err != nil {
				return false, fmt.Errorf("act on revocations up to %d: %w", counter, err)
			}
		}
		m.beat.forgot, acted = counter, true
	}
	m.beat.renewed(sent, m.cfg.Lease, received.Sub(sent) > m.cfg.Lease/3)
	m.extend(sent)
	return acted, nil
}

// extend moves the deadline after a renewal that was sent at sent.
func (m *Membership) extend(sent time.Time) {
	until := sent.Add(m.cfg.Lease)
	m.deadline.Store(&until)
	signal(m.renewals)
}

// watch checks the deadline when it is reached.
func (m *Membership) watch(ctx context.Context) {
	timer := time.NewTimer(time.Until(m.Deadline()))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.renewals:
			timer.Reset(time.Until(m.Deadline()))
		case <-timer.C:
			if !m.Suspended() {
				continue // a renewal has just moved the deadline
			}
			suspensions.Inc()
			m.cfg.Log.Warn().Stringer("member", m.cfg.Member).Msg("lease has expired, work in flight is stopped")
			if m.cfg.OnSuspended != nil {
				m.cfg.OnSuspended()
			}
		}
	}
}

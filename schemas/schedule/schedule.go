// Package schedule computes when a schedule comes due (open-parts.md, Cron): a cron
// expression of five fields in a time zone.
//
// Daylight saving: an expression follows local time, also one for every hour or minute. A
// local time that is skipped comes due at the first moment after the gap, and one that occurs
// twice comes due only the first time.
package schedule

import (
	"errors"
	"time"

	"github.com/robfig/cron/v3"
)

// Schedule is a parsed expression.
type Schedule struct {
	spec *cron.SpecSchedule
	zone *time.Location
}

// Parse parses a cron expression of five fields (minute, hour, day of month, month, day of
// week: numbers, ranges, steps, lists, names; 0 and 7 are Sunday) and the name of a time zone
// of the IANA database; "" is UTC. The error is written for the author of the expression.
func Parse(expression, zoneName string) (*Schedule, error) {
	if zoneName == "" {
		zoneName = "UTC"
	}
	loc, err := zone(zoneName)
	if err != nil {
		return nil, err
	}
	spec, err := parse(expression)
	if err != nil {
		return nil, err
	}
	spec.Location = time.UTC // which stands for local time without gaps
	// Every day of a month that exists occurs within these years.
	if spec.Next(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return nil, errors.New("it never comes due: no month named has the day named")
	}
	return &Schedule{spec: spec, zone: loc}, nil
}

// next returns the first time of the fields after t. The library looks five years ahead, and
// a leap day may be eight years away.
func (s *Schedule) next(t time.Time) time.Time {
	for {
		if due := s.spec.Next(t); !due.IsZero() {
			return due
		}
		t = t.AddDate(4, 0, 0)
	}
}

// Next returns the first due time after t, in UTC.
func (s *Schedule) Next(t time.Time) time.Time {
	for shown := onWall(t.In(s.zone)); ; {
		shown = s.next(shown)
		if at := s.moment(shown); at.After(t) {
			return at.UTC()
		}
	}
}

// onWall returns the local time at t, as a time in UTC.
func onWall(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.UTC)
}

// moment returns when the local clock first shows a time or, if it never does, when it first
// shows a later one.
func (s *Schedule) moment(shown time.Time) time.Time {
	at := time.Date(shown.Year(), shown.Month(), shown.Day(), shown.Hour(), shown.Minute(), 0, 0, s.zone)
	began, ends := at.ZoneBounds()
	switch got := onWall(at); {
	case got.After(shown):
		return began
	case got.Before(shown):
		return ends
	}
	if began.IsZero() {
		return at
	}
	// The same time may have occurred before the clock was set back.
	_, offset := began.Add(-time.Nanosecond).Zone()
	if first := shown.Add(-time.Duration(offset) * time.Second); first.Before(began) {
		return first
	}
	return at
}

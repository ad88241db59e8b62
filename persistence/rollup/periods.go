package rollup

import "time"

// Step is the length of a period.
type Step string

// Values of Step (console.md, GET /v1/stats).
const (
	Minute Step = "minute"
	Hour   Step = "hour"
	Day    Step = "day"
)

// Steps lists every value.
var Steps = []Step{Minute, Hour, Day}

// Periods returns the bounds of the periods that begin before to, the first of which contains
// from: one bound more than there are periods. Hours and days are those of the zone. ok is
// false if there are more than most periods.
func Periods(step Step, from, to time.Time, zone *time.Location, most int) (bounds []time.Time, ok bool) {
	at := floor(step, from.In(zone))
	bounds = append(bounds, at.UTC())
	for at.Before(to) {
		if len(bounds) > most {
			return nil, false
		}
		at = next(step, at)
		bounds = append(bounds, at.UTC())
	}
	return bounds, true
}

func floor(step Step, t time.Time) time.Time {
	switch step {
	case Day:
		return today(t)
	case Hour:
		return t.Add(-time.Duration(t.Minute())*time.Minute - time.Duration(t.Second())*time.Second - time.Duration(t.Nanosecond()))
	}
	return t.Truncate(time.Minute)
}

func next(step Step, at time.Time) time.Time {
	switch step {
	case Day:
		y, m, d := at.Date()
		for i := 1; ; i++ { // a zone may have left a day out
			if start, ok := dayStart(y, m, d+i, at.Location()); ok && start.After(at) {
				return start
			}
		}
	case Hour: // a change of the clock by half an hour makes shorter hours
		return floor(Hour, at.Add(time.Hour))
	}
	return at.Add(time.Minute)
}

// today returns the first moment of t's day.
func today(t time.Time) time.Time {
	y, m, d := t.Date()
	start, _ := dayStart(y, m, d, t.Location())
	return start
}

// dayStart returns the first moment of a day in a zone. It is not always midnight: the clock
// may go forward then, or back to a midnight that was before. ok is false if the zone left
// that day out.
func dayStart(y int, m time.Month, d int, zone *time.Location) (start time.Time, ok bool) {
	midnight := time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
	for _, near := range []time.Duration{-24 * time.Hour, 24 * time.Hour} {
		_, offset := midnight.Add(near).In(zone).Zone()
		t := midnight.Add(-time.Duration(offset) * time.Second).In(zone)
		if t.Day() == midnight.Day() && (!ok || t.Before(start)) {
			start, ok = t, true
		}
	}
	return start, ok
}

// Range is the rows of one length that begin from From up to To.
type Range struct {
	Minutes  int
	From, To time.Time
}

// Ranges returns which rows of stats add up to the periods: the longest that end at no other
// moment than a bound.
func Ranges(bounds []time.Time) (out []Range) {
	for i := 1; i < len(bounds); i++ {
		for at, end := bounds[i-1].Truncate(time.Minute), bounds[i].Truncate(time.Minute); at.Before(end); {
			minutes := 1
			for _, longer := range Levels[1:] {
				d := time.Duration(longer) * time.Minute
				if at.Truncate(d).Equal(at) && !at.Add(d).After(end) {
					minutes = longer
				}
			}
			to := at.Add(time.Duration(minutes) * time.Minute)
			if n := len(out); n > 0 && out[n-1].Minutes == minutes && out[n-1].To.Equal(at) {
				out[n-1].To = to
			} else {
				out = append(out, Range{minutes, at, to})
			}
			at = to
		}
	}
	return out
}

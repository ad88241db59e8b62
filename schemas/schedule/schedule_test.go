package schedule

import (
	"testing"
	"time"
)

func at(t *testing.T, s string) time.Time {
	t.Helper()
	v, err := time.Parse(time.RFC3339, s)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// Each case is a schedule, a moment, and the due times after it.
func TestDueTimes(t *testing.T) {
	for name, c := range map[string]struct {
		cron, zone, after string
		want              []string
	}{
		"every minute":          {"* * * * *", "", "2026-11-21T12:00:59Z", []string{"2026-11-21T12:01:00Z", "2026-11-21T12:02:00Z"}},
		"not the moment itself": {"0 12 * * *", "UTC", "2026-11-21T12:00:00Z", []string{"2026-11-22T12:00:00Z"}},
		"weekdays at nine in Berlin": {"0 9 * * MON-FRI", "Europe/Berlin", "2026-11-20T09:00:00+01:00",
			[]string{"2026-11-23T09:00:00+01:00", "2026-11-24T09:00:00+01:00"}},
		"the last of February": {"0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z", []string{"2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"}},
		// New York, 8 March 2026: 02:00 EST is 03:00 EDT.
		"spring: a skipped time comes due after the gap": {"30 2 * * *", "America/New_York", "2026-03-07T02:30:00-05:00",
			[]string{"2026-03-08T03:00:00-04:00", "2026-03-09T02:30:00-04:00"}},
		"spring: two skipped times and the first after them are one": {"0,30 2,3 * * *", "America/New_York", "2026-03-08T01:59:59-05:00",
			[]string{"2026-03-08T03:00:00-04:00", "2026-03-08T03:30:00-04:00", "2026-03-09T02:00:00-04:00"}},
		"spring: every hour knows no gap": {"15 * * * *", "America/New_York", "2026-03-08T00:30:00-05:00",
			[]string{"2026-03-08T01:15:00-05:00", "2026-03-08T03:15:00-04:00", "2026-03-08T04:15:00-04:00"}},
		// New York, 1 November 2026: 02:00 EDT is 01:00 EST.
		"autumn: what is shown twice comes due once": {"30 1 * * *", "America/New_York", "2026-10-31T12:00:00-04:00",
			[]string{"2026-11-01T01:30:00-04:00", "2026-11-02T01:30:00-05:00"}},
		"autumn: asked between the two": {"30 1 * * *", "America/New_York", "2026-11-01T01:10:00-05:00",
			[]string{"2026-11-02T01:30:00-05:00"}},
		"autumn: every hour knows no repetition": {"30 * * * *", "America/New_York", "2026-11-01T00:45:00-04:00",
			[]string{"2026-11-01T01:30:00-04:00", "2026-11-01T01:30:00-05:00", "2026-11-01T02:30:00-05:00"}},
		"autumn: the first time after the repetition": {"0 2 * * *", "America/New_York", "2026-11-01T01:59:00-04:00",
			[]string{"2026-11-01T02:00:00-05:00", "2026-11-02T02:00:00-05:00"}},
		// Lord Howe, 4 October 2026: 02:00 is 02:30; 5 April 2026: 02:00 is 01:30.
		"a gap of half an hour": {"15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00:00+10:30",
			[]string{"2026-10-04T02:30:00+11:00", "2026-10-05T02:15:00+11:00"}},
		"half an hour twice": {"45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00:00+11:00",
			[]string{"2026-04-05T01:45:00+11:00", "2026-04-06T01:45:00+10:30"}},
		// Apia skipped 30 December 2011.
		"a day that was not": {"0 12 30 12 *", "Pacific/Apia", "2011-12-01T00:00:00-10:00", []string{"2011-12-31T00:00:00+14:00"}},
		"midnight that was not": {"0 0 * * *", "America/Santiago", "2026-09-05T12:00:00-04:00",
			[]string{"2026-09-06T01:00:00-03:00", "2026-09-07T00:00:00-03:00"}},
	} {
		s, err := Parse(c.cron, c.zone)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		now := at(t, c.after)
		for i, want := range c.want {
			if now = s.Next(now); !now.Equal(at(t, want)) {
				t.Errorf("%s: due time %d is %v, want %s", name, i+1, now.In(s.zone), want)
				break
			}
		}
	}
}

func TestWhatIsNotUnderstood(t *testing.T) {
	for name, c := range map[string]struct{ cron, zone string }{
		"nothing":              {"", ""},
		"four fields":          {"* * * *", ""},
		"six fields":           {"* * * * * *", ""},
		"a minute too many":    {"60 * * * *", ""},
		"an hour too many":     {"0 24 * * *", ""},
		"a shorthand":          {"@daily", ""},
		"a period":             {"@every 5m", ""},
		"never":                {"0 0 31 2 *", ""},
		"a zone inside":        {"CRON_TZ=UTC 0 0 * * *", ""},
		"the other spelling":   {"TZ=UTC 0 0 * * *", ""},
		"an unknown zone":      {"0 0 * * *", "Europe/Atlantis"},
		"the machine's zone":   {"0 0 * * *", "Local"},
		"a path":               {"0 0 * * *", "../../etc/passwd"},
		"a step of nothing":    {"*/0 * * * *", ""},
		"a range turned round": {"5-1 * * * *", ""},
	} {
		if s, err := Parse(c.cron, c.zone); err == nil {
			t.Errorf("%s: understood as %+v", name, s.spec)
		}
	}
}

// Over years, and in zones with all kinds of changes, due times increase and those
// of a daily schedule come on every day that there is.
func TestDueTimesIncrease(t *testing.T) {
	for _, zone := range []string{"UTC", "America/New_York", "Europe/London", "Australia/Lord_Howe", "America/Santiago", "Africa/Casablanca", "Asia/Tehran"} {
		for _, cron := range []string{"0 0 * * *", "30 1 * * *", "30 2 * * *", "*/10 * * * *", "59 23 * * *"} {
			s, err := Parse(cron, zone)
			if err != nil {
				t.Fatal(err)
			}
			now := time.Date(2019, 12, 31, 12, 0, 0, 0, time.UTC)
			days := map[string]bool{}
			for now.Year() < 2021 {
				next := s.Next(now)
				if !next.After(now) {
					t.Fatalf("%s in %s: after %v comes %v", cron, zone, now, next)
				}
				if s.wall && next.Sub(now) > 26*time.Hour {
					t.Errorf("%s in %s: nothing between %v and %v", cron, zone, now, next)
				}
				if day := next.In(s.zone).Format(time.DateOnly); s.wall && days[day] {
					t.Errorf("%s in %s: twice on %s", cron, zone, day)
				} else {
					days[day] = true
				}
				now = next
			}
		}
	}
}

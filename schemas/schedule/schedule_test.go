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
		"Sunday is 7":           {"0 9 * * 7", "", "2026-11-21T12:00:00Z", []string{"2026-11-22T09:00:00Z", "2026-11-29T09:00:00Z"}},
		"Sunday is 0":           {"0 9 * * 0", "", "2026-11-21T12:00:00Z", []string{"2026-11-22T09:00:00Z", "2026-11-29T09:00:00Z"}},
		"to Sunday":             {"0 9 * * sat-SUN", "", "2026-11-20T12:00:00Z", []string{"2026-11-21T09:00:00Z", "2026-11-22T09:00:00Z", "2026-11-28T09:00:00Z"}},
		"to 7":                  {"0 9 * * 6-7", "", "2026-11-20T12:00:00Z", []string{"2026-11-21T09:00:00Z", "2026-11-22T09:00:00Z", "2026-11-28T09:00:00Z"}},
		"lists, steps, names":   {"10-30/10,45 8 1 jan,JUL *", "", "2026-01-01T00:00:00Z", []string{"2026-01-01T08:10:00Z", "2026-01-01T08:20:00Z", "2026-01-01T08:30:00Z", "2026-01-01T08:45:00Z", "2026-07-01T08:10:00Z"}},
		"a step from a value":   {"50/5 8 * * *", "", "2026-01-01T00:00:00Z", []string{"2026-01-01T08:50:00Z", "2026-01-01T08:55:00Z", "2026-01-02T08:50:00Z"}},
		"a day or a weekday":    {"0 0 13 * FRI", "", "2026-11-01T00:00:00Z", []string{"2026-11-06T00:00:00Z", "2026-11-13T00:00:00Z", "2026-11-20T00:00:00Z"}},
		"eight years":           {"0 0 29 2 *", "UTC", "2096-03-01T00:00:00Z", []string{"2104-02-29T00:00:00Z"}},
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
		"spring: a skipped time of every hour comes due after the gap": {"15 * * * *", "America/New_York", "2026-03-08T00:30:00-05:00",
			[]string{"2026-03-08T01:15:00-05:00", "2026-03-08T03:00:00-04:00", "2026-03-08T03:15:00-04:00", "2026-03-08T04:15:00-04:00"}},
		"spring: every minute": {"* * * * *", "America/New_York", "2026-03-08T01:58:00-05:00",
			[]string{"2026-03-08T01:59:00-05:00", "2026-03-08T03:00:00-04:00", "2026-03-08T03:01:00-04:00"}},
		// New York, 1 November 2026: 02:00 EDT is 01:00 EST.
		"autumn: what is shown twice comes due once": {"30 1 * * *", "America/New_York", "2026-10-31T12:00:00-04:00",
			[]string{"2026-11-01T01:30:00-04:00", "2026-11-02T01:30:00-05:00"}},
		"autumn: asked between the two": {"30 1 * * *", "America/New_York", "2026-11-01T01:10:00-05:00",
			[]string{"2026-11-02T01:30:00-05:00"}},
		"autumn: every hour comes due once in the hour shown twice": {"30 * * * *", "America/New_York", "2026-11-01T00:45:00-04:00",
			[]string{"2026-11-01T01:30:00-04:00", "2026-11-01T02:30:00-05:00", "2026-11-01T03:30:00-05:00"}},
		"autumn: every minute, asked between the two": {"* * * * *", "America/New_York", "2026-11-01T01:10:00-05:00",
			[]string{"2026-11-01T02:00:00-05:00", "2026-11-01T02:01:00-05:00"}},
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
		"an empty item":        {"1,,2 * * * *", ""},
		"an empty item behind": {"1, * * * *", ""},
		"an empty item before": {"0 0 * * ,MON", ""},
		"a question mark":      {"0 0 ? * *", ""},
		"the last day":         {"0 0 L * *", ""},
		"a day of week of 8":   {"0 0 * * 8", ""},
		"a month of 0":         {"0 0 * 0 *", ""},
		"a signed number":      {"+1 * * * *", ""},
		"a negative step":      {"*/-1 * * * *", ""},
		"an empty step":        {"*/ * * * *", ""},
		"two steps":            {"*/2/3 * * * *", ""},
		"an open range":        {"1- * * * *", ""},
		"two ranges":           {"1-2-3 * * * *", ""},
		"another month's name": {"0 0 * MON *", ""},
		"never, of several":    {"0 0 30,31 FEB *", ""},
		"the host's zone":      {"0 0 * * *", "localtime"},
		"the host's posix":     {"0 0 * * *", "posix/Europe/Berlin"},
		"the host's right":     {"0 0 * * *", "right/Europe/Berlin"},
		"no zone":              {"0 0 * * *", "Factory"},
		"an old short name":    {"0 0 * * *", "EST"},
		"an area":              {"0 0 * * *", "Europe"},
		"an area with a slash": {"0 0 * * *", "Europe/"},
		"another case":         {"0 0 * * *", "europe/berlin"},
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

// Over years, and in zones with all kinds of changes, due times increase and those of a daily
// schedule occur on every existing day.
func TestDueTimesIncrease(t *testing.T) {
	for _, zone := range []string{"UTC", "America/New_York", "Europe/London", "Australia/Lord_Howe", "America/Santiago", "Africa/Casablanca", "Asia/Tehran"} {
		for _, cron := range []string{"0 0 * * *", "30 1 * * *", "30 2 * * *", "*/10 * * * *", "59 23 * * *"} {
			s, err := Parse(cron, zone)
			if err != nil {
				t.Fatal(err)
			}
			now := time.Date(2019, 12, 31, 12, 0, 0, 0, time.UTC)
			days, daily := map[string]bool{}, cron != "*/10 * * * *"
			for now.Year() < 2021 {
				next := s.Next(now)
				if !next.After(now) {
					t.Fatalf("%s in %s: after %v comes %v", cron, zone, now, next)
				}
				if daily && next.Sub(now) > 26*time.Hour {
					t.Errorf("%s in %s: nothing between %v and %v", cron, zone, now, next)
				}
				if day := next.In(s.zone).Format(time.DateOnly); daily && days[day] {
					t.Errorf("%s in %s: twice on %s", cron, zone, day)
				} else {
					days[day] = true
				}
				now = next
			}
		}
	}
}

// Errors are in words of cron, and name the field.
func TestErrorsNameTheField(t *testing.T) {
	for cron, want := range map[string]string{
		"60 * * * *":   "minute: 60 is not between 0 and 59",
		"0 x * * *":    `hour: "x" is not a number`,
		"0 0 0 * *":    "day of month: 0 is not between 1 and 31",
		"0 0 * 13 *":   "month: 13 is not between 1 and 12",
		"0 0 * * FOO":  `day of week: "FOO" is neither a number nor a name such as SUN`,
		"1,,2 * * * *": "minute: an item of the list is empty",
		"5-1 * * * *":  `minute: the range "5-1" ends before it begins`,
		"*/0 * * * *":  `minute: the step "0" must be a whole number from 1 on`,
		"* * * *":      "expected five fields (minute, hour, day of month, month, day of week), got 4",
		"@daily":       `@daily is not supported: write the five fields, as in "0 9 * * MON-FRI"`,
		"0 0 31 2 *":   "it never comes due: no month named has the day named",
	} {
		if _, err := Parse(cron, ""); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", cron, err, want)
		}
	}
}

// Zones come from the embedded data, whatever the host has.
func TestZonesAreTheEmbeddedOnes(t *testing.T) {
	t.Setenv("ZONEINFO", t.TempDir())
	for _, name := range []string{"", "UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/UTC"} {
		if _, err := Parse("0 0 * * *", name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

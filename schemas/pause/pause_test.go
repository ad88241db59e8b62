package pause

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestFor(t *testing.T) {
	const never = time.Hour
	for name, c := range map[string]struct {
		d, ends time.Duration // ends: when ctx ends
		want    bool
		takes   time.Duration
	}{
		"the whole time":                     {time.Minute, never, true, time.Minute},
		"ctx ends first":                     {time.Minute, time.Second, false, time.Second},
		"ctx has ended":                      {time.Minute, 0, false, 0},
		"no time":                            {0, never, true, 0},
		"no time, and ctx has ended":         {0, 0, false, 0},
		"less than no time":                  {-time.Second, never, true, 0},
		"less than no time, ctx has ended":   {-time.Second, 0, false, 0},
		"the shortest time, ctx ends behind": {1, 2, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), c.ends)
				defer cancel()
				began := time.Now()
				got := For(ctx, c.d)
				if took := time.Since(began); got != c.want || took != c.takes {
					t.Errorf("%t after %s, want %t after %s", got, took, c.want, c.takes)
				}
			})
		})
	}
}

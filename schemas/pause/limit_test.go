package pause

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := errors.New("late")
		ctx, l := NewLimit(t.Context(), time.Minute, late)
		defer l.End()
		for range 5 {
			time.Sleep(59 * time.Second)
			l.Hold()
			time.Sleep(time.Hour)
			l.Set(time.Minute)
		}
		synctest.Wait()
		if ctx.Err() != nil {
			t.Fatal("it ended although its time was set again")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if ctx.Err() == nil || context.Cause(ctx) != late {
			t.Errorf("%v %v", ctx.Err(), context.Cause(ctx))
		}
		ctx, l = NewLimit(t.Context(), time.Minute, late)
		l.End()
		if ctx.Err() == nil || context.Cause(ctx) == late {
			t.Errorf("ended: %v %v", ctx.Err(), context.Cause(ctx))
		}
	})
}

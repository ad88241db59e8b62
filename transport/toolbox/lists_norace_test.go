//go:build !race

package toolbox

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"agentsvc/schemas/model"
)

// large is a list of n tools with descriptions of 8 KiB.
func large(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("t%03d %s", i, strings.Repeat("x", 8<<10))
	}
	return out
}

// allocated is the memory that f takes, freed or not.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

const mib = 1 << 20

// security.md: what a tenant supplies is work that must be bounded. A turn with servers that are
// down reads the list of each once, and no more lists than an agent can use; a page of the tenant's
// tools, a check of a message's tools and an explanation read no more than they need. It runs
// alone: it measures the memory of the process.
func TestListsAreReadWithinBounds(t *testing.T) {
	w := newShops(t)
	const servers = 12
	for i := range servers {
		w.shop(fmt.Sprintf("down-%02d", i), nil, large(256)) // 2 MiB
	}
	within := func(what string, most uint64, f func() error) {
		t.Helper()
		var err error
		if n := allocated(func() { err = f() }); err != nil || n > most {
			t.Errorf("%s: %d MiB, %v", what, n/mib, err)
		}
	}
	for _, what := range []string{"servers that do not answer", "servers that did not answer lately"} {
		within(what, 250*mib, func() error {
			offers, err := w.box.Offer(t.Context(), w.caller)
			if n := len(offers); n < 7*256 || n%256 != 0 || n > 8*256 || offers[0].Name != "down-00.t000" {
				t.Errorf("%s: %d tools are offered", what, n)
			}
			return err
		})
	}
	if n := len(w.askedFor()); n != servers {
		t.Errorf("%d servers were asked, and within their downtime again", n)
	}
	within("a page", 60*mib, func() error {
		tools, more, err := w.box.All(t.Context(), w.caller.Tenant, "down-03.t100", 10)
		if len(tools) != 10 || !more || tools[0].Qualified() != "down-03.t101" {
			t.Errorf("%d tools, more %v", len(tools), more)
		}
		return err
	})
	within("a page that is full before its end", 80*mib, func() error {
		tools, more, err := w.box.All(t.Context(), w.caller.Tenant, "", 100_000)
		if n := len(tools); n < 256 || n > 1024 || !more {
			t.Errorf("%d tools, more %v", n, more)
		}
		return err
	})
	within("a token of the first list", 60*mib, func() error {
		known, err := w.box.Known(t.Context(), w.caller.Tenant, []string{"down-00.t001", "t002"})
		if !slices.Equal(known, []bool{true, true}) {
			t.Errorf("known: %v", known)
		}
		return err
	})
	// A token may name a tool of a list that is not read.
	within("an unknown token", 250*mib, func() error {
		known, err := w.box.Known(t.Context(), w.caller.Tenant, []string{"t001", "none"})
		if !slices.Equal(known, []bool{true, true}) {
			t.Errorf("known: %v", known)
		}
		return err
	})
	within("an explanation", 400*mib, func() error {
		e, err := w.box.Explain(t.Context(), w.caller.Tenant, w.caller.Agent, fmt.Sprintf("down-%02d.t255", servers-1))
		if e == nil || !strings.Contains(e.Why, "manifest") {
			t.Errorf("%+v", e)
		}
		return err
	})
	if n := len(w.askedFor()); n != servers {
		t.Errorf("%d servers were asked", n)
	}
	const call = "down-06.t255"
	plan, err := w.box.Plan(t.Context(), w.caller, 1, []model.Call{model.NewCall("a", call, `{}`), model.NewCall("b", "none", `{}`)})
	if err != nil || plan[0].Refused != nil || plan[0].Tool != call || plan[1].Refused == nil {
		t.Errorf("%+v, %v", plan, err)
	}
}

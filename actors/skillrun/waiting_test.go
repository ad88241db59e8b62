package skillrun_test

import (
	"runtime"
	"strconv"
	"testing"

	"agentsvc/schemas/testkit"
)

// A thousand runs that wait for people are rows alone: no page is open for them, none is in memory, and the node
// has no goroutine and next to no memory for them.
func TestAThousandRunsWaitAsRows(t *testing.T) { // not parallel: it counts goroutines
	const many, each = 1000, 25
	w, s := newWorld(t), newSite()
	n := w.node(s)
	w.calls(n, w.agentRun(), 1).begins().becomes("prepared, held")
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	goroutines, memory := runtime.NumGoroutine(), heap()
	var calls []*call
	for begun := 0; begun < many; begun += each {
		r := w.agentRun()
		for i := range each {
			calls = append(calls, w.calls(n, r, 1+i).begins())
		}
		testkit.Eventually(t, "all are prepared", func() bool { // more may not wait for the browser at a time
			return w.text(`SELECT count(*) FROM browser_skill_runs WHERE status = 'prepared'`) == strconv.Itoa(1+begun+each)
		})
	}
	testkit.Eventually(t, "none is in memory, and no page is open", func() bool {
		for _, c := range calls {
			if n.Active(c.address()) {
				return false
			}
		}
		return s.pages() == 0
	})
	testkit.Eventually(t, "no goroutine is left of them", func() bool { return runtime.NumGoroutine() <= goroutines+8 })
	// The test's own list and the writer's buffers are in it.
	if now := heap(); now > memory+many*4<<10 {
		t.Errorf("%d bytes more for each run that waits", (now-memory)/many)
	}
	// The last one goes on as the first would.
	last := calls[len(calls)-1]
	last.asked(last.args)
	last.approves().becomes("succeeded, ended, held")
}

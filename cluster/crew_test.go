package cluster

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Each scheduled function runs once.
func TestACrewRunsEverythingOnce(t *testing.T) {
	c := &crew{}
	defer c.close()
	var ran [20_000]atomic.Int32
	var left, senders sync.WaitGroup
	left.Add(len(ran))
	for from := range 8 {
		senders.Go(func() {
			for i := from; i < len(ran); i += 8 {
				c.Schedule(func() {
					ran[i].Add(1)
					left.Done()
				})
			}
		})
	}
	senders.Wait()
	left.Wait()
	for i := range ran {
		if n := ran[i].Load(); n != 1 {
			t.Fatalf("run %d: %d times", i, n)
		}
	}
}

// An idle worker runs the next function. It stays for a while and then ends.
func TestACrewComesAndGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &crew{}
		idle := func() int {
			synctest.Wait()
			c.mu.Lock()
			defer c.mu.Unlock()
			return len(c.idle)
		}
		together := func(n int) {
			hold := make(chan struct{})
			for range n {
				c.Schedule(func() { <-hold })
			}
			synctest.Wait()
			close(hold)
		}
		for range 100 {
			together(1)
			if n := idle(); n != 1 {
				t.Fatalf("%d for one after another", n)
			}
		}
		together(10)
		if n := idle(); n != 10 {
			t.Fatalf("%d for ten at once", n)
		}
		for range 3 * workersStay / time.Second { // three are enough
			together(3)
			time.Sleep(time.Second)
		}
		if n := idle(); n != 3 {
			t.Errorf("%d stay for three", n)
		}
		time.Sleep(2*workersStay + time.Second)
		if n := idle(); n != 0 {
			t.Errorf("%d stay for nothing", n)
		}
		together(maxIdleWorkers + 10)
		if n := idle(); n != maxIdleWorkers {
			t.Errorf("%d stay after a crowd", n)
		}
		time.Sleep(workersStay + time.Second) // the next trim ends them
		c.close()
		together(5)
		if n := idle(); n != 0 {
			t.Errorf("%d stay at the end", n)
		}
		time.Sleep(2 * workersStay) // a trim was due
	})
}

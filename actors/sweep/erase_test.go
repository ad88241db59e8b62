package sweep

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/persistence/feed"
	"agentsvc/schemas/id"
)

// erases is a sweep over f whose looks are asked for one by one; each erases as much as
// is wanted and rests as long.
func erases(t *testing.T, f *fake) (s *Sweep, look func(want int, rest time.Duration)) {
	t.Helper()
	s = New(Config{Rows: f, Kinds: f.kinds(), Retentions: f.retentions, Node: f, Log: zerolog.Nop()})
	return s, func(want int, rest time.Duration) {
		t.Helper()
		if n, r, err := s.erase(t.Context()); err != nil || n != want || r != rest {
			t.Errorf("erased %d, rests %v, %v; want %d and %v", n, r, err, want, rest)
		}
	}
}

func peopleN(n int) []feed.Person {
	people := make([]feed.Person, n)
	for i := range people {
		people[i].ID = id.EndUserID(runN(i + 1))
	}
	return people
}

const soon = 250 * time.Millisecond

// What deleted end users left behind: their threads are told where they live, each look
// anew until they are gone, and what is erased is erased in batches.
func TestDeletedEndUsers(t *testing.T) {
	thread := func(shard id.Shard) id.UUID { return id.New(shard) }
	here, moved, elsewhere := thread(3), thread(4), thread(5)
	f := &fake{shards: []id.Shard{3, 4}, lost: map[id.Shard]bool{4: true}, lostThreads: []feed.Entity{{ID: here}, {ID: moved}, {ID: elsewhere}},
		people: peopleN(2), gone: [3]int{2*eraseBatch + 1, 1, 3}}
	s, look := erases(t, f)
	look(eraseBatch+1+2, soon)
	look(eraseBatch+1, soon) // there may be more
	look(1, 5*time.Second)
	look(0, 5*time.Second)
	if len(f.looks) != 4 || len(f.told) != 4 {
		t.Errorf("%d looks, told %v", len(f.looks), f.told)
	}
	for _, told := range f.told {
		if !strings.HasPrefix(told, fmt.Sprintf("thread %x ", here[15])) || !strings.Contains(told, "system") {
			t.Errorf("told %s", told)
		}
	}
	// A part that fails keeps no other, and is not tried again at once.
	f.err, f.gone[1] = errors.New("down"), eraseBatch
	if n, rest, err := s.erase(t.Context()); err == nil || n != eraseBatch || rest != 5*time.Second {
		t.Errorf("erased %d, rests %v, %v", n, rest, err)
	}
	// Threads that were told have time.
	f.err, f.lostThreads = nil, nil
	for range eraseBatch {
		f.lostThreads = append(f.lostThreads, feed.Entity{ID: here})
	}
	look(0, time.Second)
	// Of nobody there is nothing to look for.
	f.people, f.looks = nil, nil
	look(0, 5*time.Second)
	if len(f.looks) != 0 {
		t.Errorf("%v looks", f.looks)
	}
}

// People are looked at in turn, so many at a time: who left much behind keeps nobody
// waiting, and is not forgotten.
func TestManyDeletedEndUsers(t *testing.T) {
	f := &fake{people: peopleN(2*erasePeople + 7), gone: [3]int{eraseBatch + 1, 0, 0}}
	_, look := erases(t, f)
	look(eraseBatch, soon)
	look(1, soon)
	look(0, soon) // a round: of someone there was more than was taken
	look(0, soon)
	look(0, soon)
	look(0, 5*time.Second)
	if want := []int{erasePeople, erasePeople, 7, erasePeople, erasePeople, 7}; !slices.Equal(f.looks, want) {
		t.Errorf("looked at %v", f.looks)
	}
}

// A round begins where the one before found somebody, a little earlier for deletions that
// commit late, and once an hour with the first of all.
func TestWhereARoundBegins(t *testing.T) {
	f := &fake{people: peopleN(2)}
	f.people[0].DeletedAt, f.people[1].DeletedAt = noon.Add(-time.Hour), noon.Add(-time.Minute)
	first, last := f.people[0], f.people[1]
	s, _ := erases(t, f)
	now := noon
	s.cfg.Now = func() time.Time { return now }
	for i, c := range []struct {
		after  time.Duration
		people []feed.Person
		from   feed.Person
	}{
		{0, f.people, feed.Person{}},
		{time.Second, f.people[1:], feed.Person{DeletedAt: first.DeletedAt.Add(-lateDeletion)}},
		{time.Second, nil, feed.Person{DeletedAt: last.DeletedAt.Add(-lateDeletion)}},
		{time.Minute, nil, feed.Person{DeletedAt: last.DeletedAt.Add(-lateDeletion)}},
		{lateDeletion, nil, feed.Person{DeletedAt: last.DeletedAt.Add(-lateDeletion)}},
		{time.Second, nil, last},
		{anewEvery, nil, last},
		{time.Second, nil, feed.Person{}},
		{time.Second, nil, last},
	} {
		now, f.people = now.Add(c.after), c.people
		if _, _, err := s.erase(t.Context()); err != nil || f.afters[i] != c.from {
			t.Errorf("round %d begins with %v, %v; want %v", i, f.afters[i], err, c.from)
		}
	}
}

// What did not end in time is tried again with less of it, until it does; then with more.
func TestAnErasureThatTakesTooLong(t *testing.T) {
	f := &fake{people: peopleN(1), gone: [3]int{1000, 0, 0}, most: 3}
	s, look := erases(t, f)
	for limit := eraseBatch; limit > f.most; limit /= 2 {
		if n, rest, err := s.erase(t.Context()); !errors.Is(err, context.DeadlineExceeded) || n != 0 || rest != 5*time.Second {
			t.Fatalf("of %d: erased %d, rests %v, %v", limit, n, rest, err)
		}
	}
	look(3, soon)
	f.most = 0
	look(6, soon)
	look(12, soon)
	for range 10 {
		if _, _, err := s.erase(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range s.erasure.parts {
		if p.batch != eraseBatch {
			t.Errorf("%s: %d at a time", p.kind.Name, p.batch)
		}
	}
}

func TestASuspendedNodeErasesNothing(t *testing.T) {
	f := &fake{people: peopleN(1), gone: [3]int{1, 1, 1}}
	s, look := erases(t, f)
	live := false
	s.cfg.Live = func() bool { return live }
	look(0, 5*time.Second)
	live = true
	look(3, 5*time.Second)
}

// Timers fire while an erasure goes on and on; the end of the sweep ends it.
func TestNobodyWaitsForAnErasure(t *testing.T) {
	begun := make(chan struct{})
	first := sync.OnceFunc(func() { close(begun) })
	f := &fake{people: peopleN(1), slow: func(ctx context.Context) error {
		if at, limited := ctx.Deadline(); !limited || time.Until(at) > pageTimeout {
			t.Error("it may last for ever")
		}
		first()
		<-ctx.Done()
		return ctx.Err()
	}}
	s := New(Config{Rows: f, Kinds: f.kinds(), Retentions: f.retentions, Node: f, Log: zerolog.Nop(), Every: time.Millisecond})
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-begun
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	from := time.Now()
	for n := range 20 { // each after the one before was told
		f.mu.Lock()
		f.timers = append(f.timers, feed.Timer{Kind: "run", Name: "due"})
		f.mu.Unlock()
		for told := 0; told <= n; <-tick.C {
			f.mu.Lock()
			told = len(f.told)
			f.mu.Unlock()
		}
	}
	if took := time.Since(from); took >= pageTimeout {
		t.Errorf("20 timers took %v", took)
	}
	s.Stop()
}

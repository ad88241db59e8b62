package placement

import (
	"errors"
	"math/rand"
	"testing"

	"agentsvc/schemas/id"
)

func members(n int) []id.MemberID {
	ms := make([]id.MemberID, n)
	for i := range ms {
		ms[i] = id.MemberID{UUID: id.NewAnywhere()}
	}
	return ms
}

func place(t *testing.T, ms []id.MemberID) *Table {
	t.Helper()
	p, err := New(ms)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestNobodyIsRefused(t *testing.T) {
	if _, err := New(nil); !errors.Is(err, ErrNoMembers) {
		t.Fatalf("err = %v", err)
	}
}

func TestOneMemberOwnsEveryShard(t *testing.T) {
	ms := members(1)
	if got := place(t, ms).Shards(ms[0]); len(got) != id.Shards {
		t.Fatalf("owns %d shards", len(got))
	}
}

func TestSharesAreBalanced(t *testing.T) {
	for _, n := range []int{2, 3, 5, 8} {
		for range 20 {
			ms := members(n)
			p := place(t, ms)
			fair := float64(id.Shards) / float64(n)
			for _, m := range ms {
				if got := float64(len(p.Shards(m))); got < fair*0.6 || got > fair*1.4 {
					t.Fatalf("%d members: one owns %v shards, fair is %v", n, got, fair)
				}
			}
		}
	}
}

func TestOnlyTheLeaversShardsMove(t *testing.T) {
	for n := 2; n < 9; n++ {
		ms := members(n)
		before, after := place(t, ms), place(t, ms[1:])
		for s := range id.Shard(id.Shards) {
			if before.Owner(s) != ms[0] && before.Owner(s) != after.Owner(s) {
				t.Fatalf("%d members: shard %d moved between members that stayed", n, s)
			}
			if after.Owner(s) == ms[0] {
				t.Fatalf("shard %d is owned by the member that left", s)
			}
		}
	}
}

func TestOrderAndDuplicatesDoNotMatter(t *testing.T) {
	ms := members(5)
	a := place(t, ms)
	mixed := append(append([]id.MemberID{}, ms...), ms...)
	rand.Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
	b := place(t, mixed)
	for s := range id.Shard(id.Shards) {
		if a.Owner(s) != b.Owner(s) {
			t.Fatalf("shard %d: %s and %s", s, a.Owner(s), b.Owner(s))
		}
	}
	if len(b.Members()) != 5 || !b.Has(ms[3]) || b.Has(members(1)[0]) {
		t.Fatal("members are wrong")
	}
}

package bucket

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/cluster"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
)

// lostPeers does not answer what it is asked.
type lostPeers struct{ err error }

func (p lostPeers) Ask(ctx context.Context, _ id.MemberID, _ cluster.Address, _ any) (any, error) {
	if p.err == nil {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return nil, p.err
}
func (lostPeers) Tell(id.MemberID, cluster.Address, any) error { return nil }
func (p lostPeers) Call(context.Context, id.MemberID, string, any) (any, error) {
	return nil, p.err
}

// A bucket of logins that does not answer has not refused the login.
func TestALoginWhoseBucketCannotBeAskedIsUnavailable(t *testing.T) {
	for name, err := range map[string]error{"the connection breaks": cluster.ErrLost, "no way there": cluster.ErrUnknownMember, "silence": nil} {
		t.Run(name, func(t *testing.T) {
			self, other := id.MemberID{UUID: id.NewAnywhere()}, id.MemberID{UUID: id.NewAnywhere()}
			n := cluster.New(cluster.Config{Member: self, Log: zerolog.Nop(), Peers: lostPeers{err}})
			if err := n.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = n.Stop(context.Background()) })
			if err := n.SetMembers([]id.MemberID{self, other}); err != nil {
				t.Fatal(err)
			}
			elsewhere := 0
			for i := range 20 { // buckets here are of no registered kind
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
				_, ok, err := Logins{Node: n}.Allow(ctx, fmt.Sprint("address ", i))
				cancel()
				if errors.Is(err, cluster.ErrUnknownKind) {
					continue
				}
				elsewhere++
				var p *problem.Error
				if ok || !errors.As(err, &p) || p.Code != problem.CodeUnavailable || p.RetryAfter != time.Second {
					t.Errorf("%v %v", ok, err)
				}
			}
			if elsewhere == 0 {
				t.Error("void")
			}
		})
	}
}

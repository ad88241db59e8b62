package toolbox

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"agentsvc/schemas/id"
	"agentsvc/schemas/tool"
)

// Callers that ask at the same time share a read, and each gets one that began after it asked.
func TestReadsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := accesses{open: map[owner]*turn{}}
		who := owner{id.TenantID{UUID: id.NewAnywhere()}, id.NewAnywhere()}
		var mu sync.Mutex // guards reads
		reads := 0
		ends := make(chan error)
		read := func(ctx context.Context) (*tool.Access, error) {
			mu.Lock()
			reads++
			n := reads
			mu.Unlock()
			if ctx.Err() != nil {
				t.Error("the read ends with its first caller")
			}
			return &tool.Access{Servers: make([]tool.Server, n)}, <-ends
		}
		type got struct {
			read int
			err  error
		}
		ask := func(ctx context.Context, o owner) <-chan got {
			c := make(chan got, 1)
			go func() {
				v, err := a.get(ctx, o, read)
				if v == nil {
					v = &tool.Access{}
				}
				c <- got{len(v.Servers), err}
			}()
			synctest.Wait()
			return c
		}
		want := func(c <-chan got, read int, err error) {
			t.Helper()
			synctest.Wait()
			select {
			case g := <-c:
				if g.read != read || !errors.Is(g.err, err) {
					t.Errorf("read %d, %v instead of %d, %v", g.read, g.err, read, err)
				}
			default:
				t.Error("no answer")
			}
		}
		all := t.Context()
		leaves, leave := context.WithCancel(all)
		first, second, third, gone := ask(all, who), ask(leaves, who), ask(all, who), ask(leaves, who)
		if reads != 1 {
			t.Fatalf("%d reads at the same time", reads)
		}
		other := ask(all, owner{who.tenant, id.NewAnywhere()}) // it waits for none of these
		if reads != 2 {
			t.Fatal("a read waits for that of another owner")
		}
		leave()
		want(gone, 0, context.Canceled)
		// Both reads under way end; then the one that three callers have asked for begins.
		ends <- nil
		ends <- nil
		want(first, 1, nil)
		want(other, 2, nil)
		fourth, fifth := ask(all, who), ask(all, who)
		failed := errors.New("failed")
		ends <- failed
		want(second, 3, failed)
		want(third, 3, failed)
		ends <- nil
		want(fourth, 4, nil)
		want(fifth, 4, nil)
		if len(a.open) != 0 {
			t.Errorf("%d owners are kept", len(a.open))
		}
	})
}

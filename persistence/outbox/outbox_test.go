package outbox

import (
	"testing"

	"agentsvc/persistence/pgtest"
)

func TestQueriesParse(t *testing.T) { pgtest.Prepare(t, queries) }

func TestSmoke(t *testing.T) {
	x := newWorld(t, nil)
	e := x.endpoint()
	d := x.pending(e, noon)
	c := x.must(Turn{Endpoint: e, Want: 3})
	t.Logf("%+v", c)
	t.Logf("%+v", x.row(d))
	x.must(Turn{Endpoint: e, Results: []Result{{Delivery: d, N: 1, Status: "failed", HTTPStatus: 500, Error: "x\x00y"}}})
	t.Logf("%+v", x.row(d))
}

package journal

import (
	"errors"
	"math"
	"strings"
	"testing"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
)

// gates is a table of a made-up kind, of which the package knows nothing.
var (
	gates    = Actors("gates", "id uuid")
	gateNew  = gates.Begin("name text, marks int[]")
	gateSwap = gates.Swap("name text, note json keep, marks int[], open boolean, weight float8")
	doors    = Plain("doors", "gate_id uuid, n int")
	doorNew  = doors.Insert("name text")
	doorSet  = doors.Upsert("name text")
)

const gatesDDL = `
CREATE TABLE gates (tenant_id uuid, id uuid, name text NOT NULL, note json, marks int[], open boolean, weight float8,
  version bigint NOT NULL DEFAULT 1, owner_epoch bigint NOT NULL DEFAULT 0, last_op uuid, PRIMARY KEY (tenant_id, id));
CREATE TABLE doors (tenant_id uuid, gate_id uuid, n int, name text, PRIMARY KEY (tenant_id, gate_id, n),
  FOREIGN KEY (tenant_id, gate_id) REFERENCES gates);
GRANT SELECT, INSERT, UPDATE, DELETE ON gates, doors TO svc_system`

// plainRow is a row of any write.
type plainRow struct {
	of  *Write
	put func(v *Values)
}

func (r plainRow) Write() *Write { return r.of }
func (r plainRow) Put(v *Values) { r.put(v) }

func gateRow(g id.UUID, name string) Row {
	return plainRow{gateNew, func(v *Values) { v.UUID(g).Text(name).Ints([]int32{1, 2}) }}
}

func gateMoves(g id.UUID, guard Guard, name string) Row {
	return plainRow{gateSwap, func(v *Values) {
		v.UUID(g).Guard(guard).Text(name).JSON(nil).Ints(nil).Bool(true).Float8(math.Pi)
	}}
}

func doorRow(of *Write, g id.UUID, n int, name string) Row {
	return plainRow{of, func(v *Values) { v.UUID(g).Int(n).Text(name) }}
}

func gateWorld(t *testing.T) *world {
	t.Helper()
	return worldOf(t, pgtest.New(t), []string{gatesDDL}, func(c *Config) { c.Tables = []*Table{gates, doors, gates} }) // two kinds name it
}

// A kind registers a table of its own: what is true of the rows of runs is true of its.
func TestAKindHasATableOfItsOwn(t *testing.T) {
	x := gateWorld(t)
	g := id.New(3)
	commit := func(rows ...Row) *draft {
		return &draft{Op: newOp(), Tenant: x.tenant, Shard: 3, Audit: []Audit{x.audit()}, Rows: rows}
	}
	is := func(want string) {
		t.Helper()
		var got string
		if err := x.pool.QueryRow(t.Context(), `SELECT concat_ws('|', g.name, g.note, g.marks::text, g.version, g.owner_epoch,
			(SELECT string_agg(d.name, ',' ORDER BY d.n) FROM doors d WHERE d.gate_id = g.id)) FROM gates g WHERE g.id = $1`, g).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	begins := commit(doorRow(doorNew, g, 1, "north"), doorRow(doorNew, g, 2, "south"), gateRow(g, "a")) // what others refer to comes first
	x.must(begins)
	is("a|{1,2}|1|0|north,south")
	x.must(begins) // the same operation again is the same success
	if err := x.do(commit(gateRow(g, "b"))); !errors.Is(err, ErrExists) {
		t.Errorf("a second beginning: %v", err)
	}
	x.must(commit(gateMoves(g, Guard{Version: 1, SetEpoch: 7}, "b"), doorRow(doorSet, g, 2, "west")))
	is("b|2|7|north,west")
	for name, c := range map[string]struct {
		rows []Row
		want error
	}{
		"it has another version":  {[]Row{gateMoves(g, Guard{Version: 1, Epoch: 7}, "c")}, ErrConflict},
		"it has another epoch":    {[]Row{gateMoves(g, Guard{Version: 2}, "c")}, ErrConflict},
		"there is no such gate":   {[]Row{gateMoves(id.New(3), Guard{Version: 1}, "c")}, ErrConflict},
		"a door is there":         {[]Row{doorRow(doorNew, g, 1, "c")}, ErrRefused},
		"a door without its gate": {[]Row{doorRow(doorNew, id.New(3), 1, "c")}, ErrRefused},
		"a stale owner's door":    {[]Row{doorRow(doorNew, g, 1, "c"), gateMoves(g, Guard{Version: 1, Epoch: 7}, "c")}, ErrConflict},
	} {
		loser, beside := commit(c.rows...), commit(doorRow(doorSet, g, 3, "beside"))
		errs := x.all([]*draft{loser, beside})
		if !errors.Is(errs[0], c.want) || errs[1] != nil {
			t.Errorf("%s: %v, want %v; beside it %v", name, errs[0], c.want, errs[1])
		}
		if n := x.count(`SELECT count(*) FROM audit_log WHERE id = $1`, loser.Audit[0].ID); n != 0 {
			t.Errorf("%s: its other rows are there", name)
		}
	}
	is("b|2|7|north,west,beside")
}

// A swap of a registered table needs no round trip besides the flush's: the database
// refuses the flush.
func TestSwapsOfOneGateDoNotShareAFlush(t *testing.T) {
	x := gateWorld(t)
	g := id.New(3)
	x.must(&draft{Op: newOp(), Tenant: x.tenant, Shard: 3, Rows: []Row{gateRow(g, "a")}})
	var moves []*draft
	for version := range int64(20) {
		moves = append(moves, &draft{Op: newOp(), Tenant: x.tenant, Shard: 3, Rows: []Row{gateMoves(g, Guard{Version: version + 1}, "b")}})
	}
	for i, err := range x.all(moves) {
		if err != nil {
			t.Errorf("move %d: %v", i, err)
		}
	}
	if n := x.count(`SELECT version FROM gates`); n != 21 {
		t.Errorf("version %d", n)
	}
}

// A row that does not fit its table is refused before it reaches a flush.
func TestARowThatDoesNotFitIsRefused(t *testing.T) {
	x := gateWorld(t)
	g := id.New(3)
	for name, row := range map[string]Row{
		"too few values":   plainRow{doorNew, func(v *Values) { v.UUID(g).Int(1) }},
		"too many values":  plainRow{doorNew, func(v *Values) { v.UUID(g).Int(1).Text("a").Text("b") }},
		"of another type":  plainRow{doorNew, func(v *Values) { v.UUID(g).Int8(1).Text("a") }},
		"an unknown table": plainRow{runSwap, func(v *Values) {}},
	} {
		if err := x.do(&draft{Op: newOp(), Tenant: x.tenant, Shard: 3, Rows: []Row{gateRow(id.New(3), "a"), row}}); !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := x.count(`SELECT count(*) FROM gates`); n != 0 {
		t.Errorf("%d gates", n)
	}
}

func TestATableThatIsNotUnderstood(t *testing.T) {
	for columns, want := range map[string]string{
		"id":                "a name, a type",
		"id uuid keep keep": "a name, a type",
		"id number":         "unknown type",
		"id uuid kept":      "unknown flag",
	} {
		func() {
			defer func() {
				if got, _ := recover().(string); !strings.Contains(got, want) {
					t.Errorf("%q: %q", columns, got)
				}
			}()
			Plain("t", "id uuid").Insert(columns)
		}()
	}
}

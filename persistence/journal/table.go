package journal

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"
)

// Table is a table that commits write, as data: the statements for one row and for many,
// and the query that settles what became of a row, are made from its name, its key and its
// columns. A flush sends the writes of a table in the order in which they were made, and
// tables in the order of Config.Tables: a table comes after those that it refers to.
//
// Columns are written as in CREATE TABLE, separated by commas: "name type flag". The types
// are uuid, text, bytea, json, int, bigint, float8, boolean, timestamptz and int[]. Flags,
// of an update: keep, a NULL leaves the column as it is; greatest, so does a smaller value;
// match, the column is compared and not set. A Table panics on columns that it does not
// understand.
type Table struct {
	name   string
	key    []field
	actor  bool
	writes []*Write
}

// Plain returns the table of that name. key is what names a row within its tenant.
func Plain(name, key string) *Table { return &Table{name: name, key: fields(key)} }

// Actors returns a table whose rows are the snapshots of actors. They have the columns
// version, owner_epoch and last_op, and their key is one uuid.
func Actors(name, key string) *Table {
	t := &Table{name: name, key: fields(key), actor: true}
	if len(t.key) != 1 || t.key[0].oid != pgtype.UUIDOID {
		panic("journal: the key of " + name + " is not one uuid")
	}
	return t
}

// Write is one of the ways in which commits write a table.
type Write struct {
	name   string
	fields []field // the parameters: the tenant, a row's values, and the operation in a table of actors
	values []field // the parameters that a row puts
	op     bool    // the operation is the last parameter

	many, one                 string // SQL; many is empty where each row is a statement of its own
	preparedMany, preparedOne string // their names on a connection

	settle string  // SQL; empty: a row says nothing about its operation
	known  []field // the parameters of settle after the place in the flush
	found  fate    // of an operation that settle finds, unless its own rows are there

	missed outcome  // of a flush in which a row does not take effect
	used   []string // the constraint whose violation says the same

	entity  bool // the first value is the entity whose commits do not share a flush
	locking int  // the place of the value that names another entity whose row is locked, -1: none
}

// Insert makes new rows. One that is there already makes its commit an ErrRefused.
func (t *Table) Insert(columns string) *Write { return t.insert("insert", columns) }

// InsertAs is another Insert, with other columns. what tells the inserts of a table apart.
func (t *Table) InsertAs(what, columns string) *Write { return t.insert(what, columns) }

// Begin is the Insert by which an actor makes its own row, in version 1 and epoch 0 as the
// table's defaults say. One that is there already makes its commit an ErrExists.
func (t *Table) Begin(columns string) *Write {
	w := t.insert("begin", columns)
	w.missed, w.used, w.entity = outcome{verdict: lost}, []string{t.name + "_pkey"}, true
	w.settled(t, exists, "JOIN", "", nil)
	return w
}

func (t *Table) insert(what, columns string) *Write {
	w := t.write(what, slices.Concat(t.key, fields(columns)), t.actor)
	w.build(t.insertSQL(w))
	return w
}

func (t *Table) insertSQL(w *Write) string {
	var values []string
	for _, f := range w.fields {
		values = append(values, f.value())
	}
	return "INSERT INTO " + t.name + " (" + strings.Join(names(w.fields), ", ") + ") SELECT " + strings.Join(values, ", ") + " FROM {rows}"
}

// Upsert makes rows, or gives those that are there these columns.
func (t *Table) Upsert(columns string) *Write {
	own := fields(columns)
	w := t.write("upsert", slices.Concat(t.key, own), false)
	var set []string
	for _, f := range own {
		set = append(set, f.name+" = excluded."+f.name)
	}
	w.build(t.insertSQL(w) + " ON CONFLICT (" + strings.Join(names(w.fields[:1+len(t.key)]), ", ") + ") DO UPDATE SET " + strings.Join(set, ", "))
	return w
}

// Update changes rows that are there; one that is not makes its commit an ErrRefused. what
// tells the updates of a table apart.
func (t *Table) Update(what, columns string) *Write {
	own := fields(columns)
	w := t.write(what, slices.Concat(t.key, own), false)
	w.build("WITH done AS (UPDATE " + t.name + " t SET " + sets(own) + " FROM {rows} WHERE " + equal(w.fields[:1+len(t.key)]) + " RETURNING 1) " + hasAll)
	w.missed = outcome{verdict: refused, err: errNoRow}
	return w
}

// Delete deletes the rows that have these columns, however many there are.
func (t *Table) Delete(columns string) *Write {
	w := t.write("delete", fields(columns), false)
	w.build("DELETE FROM " + t.name + " t USING {rows} WHERE " + equal(w.fields))
	return w
}

// guard are the parameters of a Guard.
var guard = fields("version bigint, epoch bigint, set_epoch bigint")

// Swap changes an actor's row while it has the version and the epoch of a Guard, which
// stands before the columns. One that has moved on makes its commit an ErrConflict.
func (t *Table) Swap(columns string) *Write {
	own := fields(columns)
	w := t.swap("swap", own)
	w.build("WITH " + t.swapSQL(w, own, "", ""))
	return w
}

// While is a condition of a swap on the row of another entity.
type While struct {
	Row   string // SQL that selects and locks that row; {column} stands for the value of a column
	Names string // the column that names that entity
	And   string // a condition on t, the row that is swapped
}

// SwapWhile is a Swap that also misses where While.Row finds nothing. That row is locked
// first. Each row is a statement of its own, because after a rollback the swapped row does
// not show which commit missed.
func (t *Table) SwapWhile(while While, columns string) *Write {
	own := fields(columns)
	w := t.swap("swap_while", own)
	var params []string
	for i, f := range w.fields {
		params = append(params, "{"+f.name+"}", fmt.Sprintf("$%d", i+1))
	}
	if w.locking = slices.IndexFunc(w.values, func(f field) bool { return f.name == while.Names }); w.locking < 0 {
		panic("journal: " + t.name + " has no column " + while.Names)
	}
	w.build("WITH other AS MATERIALIZED (" + strings.NewReplacer(params...).Replace(while.Row) + "), " + t.swapSQL(w, own, "other, ", " AND "+while.And))
	w.many = ""
	return w
}

// SwapUnlessHeld is a Swap that does not wait for the transaction that holds the row: such a row
// counts as changed, so that a lane of the journal is never held up. It also misses where and, a
// condition on t, does not hold.
func (t *Table) SwapUnlessHeld(and, columns string) *Write {
	key := t.key[0].name
	return t.SwapWhile(While{
		Row:   "SELECT " + key + " FROM " + t.name + " WHERE tenant_id = {tenant_id} AND " + key + " = {" + key + "} FOR NO KEY UPDATE SKIP LOCKED",
		Names: key,
		And:   and,
	}, columns)
}

func (t *Table) swap(what string, own []field) *Write {
	w := t.write(what, slices.Concat(t.key, guard, own), true)
	w.missed, w.entity = outcome{verdict: lost}, true
	w.settled(t, conflict, "LEFT JOIN", " WHERE t."+t.key[0].name+" IS NULL OR t.version <> u.version OR t.owner_epoch <> u.epoch", guard[:2])
	return w
}

func (t *Table) swapSQL(w *Write, own []field, from, where string) string {
	return "done AS (UPDATE " + t.name + " t SET version = t.version + 1, owner_epoch = u.set_epoch, " + sets(own) + ", last_op = u.last_op" +
		" FROM " + from + "{rows} WHERE " + equal(w.fields[:1+len(t.key)]) + " AND t.version = u.version AND t.owner_epoch = u.epoch" + matches(own) + where +
		" RETURNING 1) " + hasAll
}

// hasAll raises SVC01 where not every row took effect, in HAVING, so that no row is
// answered.
const hasAll = "SELECT FROM done HAVING CASE WHEN count(*) <> {count} THEN svc_missed() END"

func (t *Table) write(what string, values []field, op bool) *Write {
	w := &Write{name: t.name + "_" + what, fields: slices.Concat(fields("tenant_id uuid"), values), values: values, op: op, locking: -1}
	w.preparedMany, w.preparedOne = prefix+w.name, prefix+w.name+oneRow
	if op {
		w.fields = append(w.fields, fields("last_op uuid")...)
	}
	t.writes = append(t.writes, w)
	return w
}

// build makes the statement for many rows, which takes one array for each parameter, and
// the statement for one row, which takes values: the database takes a third less time for
// it, since each array costs it a table of its own.
func (w *Write) build(sql string) {
	w.many = strings.NewReplacer("{rows}", arrays(w.fields), "{count}", "cardinality($1)").Replace(sql)
	w.one = strings.NewReplacer("{rows}", "(SELECT "+params(w.fields, "")+") AS u ("+strings.Join(names(w.fields), ", ")+")", "{count}", "1").Replace(sql)
}

// settled makes the query that finds what became of operations, by their places in the
// flush. It returns only rows that exist already or have moved on, and whether this
// operation wrote them. Only last_op can say that: ids of messages and audit rows, and sealed
// responses, may belong to an order, which comes again under another operation.
func (w *Write) settled(t *Table, found fate, join, where string, more []field) {
	key := slices.Concat(fields("tenant_id uuid"), t.key)
	w.found, w.known = found, slices.Concat(key, more)
	written := "false"
	if w.op {
		w.known = append(w.known, fields("last_op uuid")...)
		written = "coalesce(t.last_op = u.last_op, false)"
	}
	w.settle = "SELECT u.ord, " + written + " AS written FROM " + arrays(slices.Concat(place, w.known)) +
		" " + join + " " + t.name + " t ON " + equal(key) + where
}

// field is a column as a statement's parameter.
type field struct {
	name string
	typ  string // of the parameter
	oid  uint32
	cast string // from the parameter to the column
	flag string
}

// types are the columns' types by name.
var types = map[string]field{
	"uuid":        {oid: pgtype.UUIDOID},
	"text":        {oid: pgtype.TextOID},
	"bytea":       {oid: pgtype.ByteaOID},
	"json":        {oid: pgtype.JSONOID},
	"int":         {oid: pgtype.Int4OID},
	"bigint":      {oid: pgtype.Int8OID},
	"float8":      {oid: pgtype.Float8OID},
	"boolean":     {oid: pgtype.BoolOID},
	"timestamptz": {oid: pgtype.TimestamptzOID},
	"int[]":       {typ: "text", oid: pgtype.TextOID, cast: "::int[]"}, // arrays of different lengths have no wire form as an array
}

// fields reads columns.
func fields(columns string) (out []field) {
	for column := range strings.SplitSeq(columns, ",") {
		words := strings.Fields(column)
		if len(words) < 2 || len(words) > 3 {
			panic(fmt.Sprintf("journal: a column is a name, a type and perhaps a flag: %q", column))
		}
		f, ok := types[words[1]]
		if !ok {
			panic(fmt.Sprintf("journal: unknown type: %q", column))
		}
		f.name = words[0]
		if f.typ == "" {
			f.typ = words[1]
		}
		if len(words) == 3 {
			f.flag = words[2]
			if !slices.Contains([]string{"keep", "greatest", "match"}, f.flag) {
				panic(fmt.Sprintf("journal: unknown flag: %q", column))
			}
		}
		out = append(out, f)
	}
	return out
}

func (f field) value() string { return "u." + f.name + f.cast }

func names(fs []field) (out []string) {
	for _, f := range fs {
		out = append(out, f.name)
	}
	return out
}

// params are the parameters of fs with their types.
func params(fs []field, array string) string {
	var out []string
	for i, f := range fs {
		out = append(out, fmt.Sprintf("$%d::%s%s", i+1, f.typ, array))
	}
	return strings.Join(out, ", ")
}

// arrays are the rows of array parameters.
func arrays(fs []field) string {
	return "unnest(" + params(fs, "[]") + ") AS u (" + strings.Join(names(fs), ", ") + ")"
}

// sets is the SET of an update.
func sets(fs []field) string {
	var out []string
	for _, f := range fs {
		switch f.flag {
		case "match":
		case "keep":
			out = append(out, f.name+" = coalesce("+f.value()+", t."+f.name+")")
		case "greatest": // ignores NULL
			out = append(out, f.name+" = greatest("+f.value()+", t."+f.name+")")
		default:
			out = append(out, f.name+" = "+f.value())
		}
	}
	return strings.Join(out, ", ")
}

// equal is the condition that the row has these values.
func equal(fs []field) string {
	var out []string
	for _, f := range fs {
		out = append(out, "t."+f.name+" = u."+f.name)
	}
	return strings.Join(out, " AND ")
}

// matches is the condition on the columns that are compared.
func matches(fs []field) string {
	var out string
	for _, f := range fs {
		if f.flag == "match" {
			out += " AND " + equal([]field{f})
		}
	}
	return out
}

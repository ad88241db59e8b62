package journal

import (
	"embed"

	"agentsvc/persistence/pg"
)

//go:embed queries/*.sql
var queryFiles embed.FS

var queries = pg.Queries(queryFiles)

// Places of the bulk statements of a flush, in the order in which they are sent.
// What others refer to comes first; idempotency rows come before everything. The
// swap of a row comes before what is inserted under it, so that it is the swap that
// tells a stale owner, and not a key that the row's owner has used since.
const (
	bIdempotency = iota
	bThreadInsert
	bThreadUpdate
	bRunInsert
	bRunUpdate
	bStepInsert
	bStepCall
	bStepUpdate
	bMark
	bMessagePurge
	bMessage
	bTimerDelete
	bTimerSet
	bUsage
	bAudit
	bEvent
	bulks
)

// statements are the texts of what a flush prepares, by name without prefix.
var statements = func() map[string]string {
	texts := map[string]string{}
	for _, name := range []string{"begin", "commit", "fence", "forget"} {
		texts[name] = queries.Get(name)
	}
	for _, b := range newRows() {
		sql := queries.Get(b.name)
		texts[b.name], texts[b.one] = sql, forOne(sql)
	}
	return texts
}()

// rows are the rows of the operations of one flush, by statement.
type rows [bulks]*bulk

func newRows() *rows {
	return &rows{
		bIdempotency:  newBulk("idempotency_insert", tUUID, tBytes, tBytes, tInt4, tBytes, tTime),
		bThreadInsert: newBulk("thread_insert", tUUID, tUUID, tUUID, tText, tText, tUUID, tInt8, tTime, tUUID),
		bThreadUpdate: newBulk("thread_update", tUUID, tUUID, tInt8, tInt8, tInt8, tInt8, tTime, tTime, tUUID),
		bRunInsert: newBulk("run_insert", tUUID, tUUID, tUUID, tInt4, tUUID, tUUID, tInt8, tUUID,
			tJSON, tText, tUUID, tUUID, tUUID, tTime, tBytes, tUUID),
		bRunUpdate: newBulk("run_update", tUUID, tUUID, tInt8, tInt8, tInt8, tText, tJSON, tText, tText,
			tInt8, tInt8, tFloat8, tTime, tTime, tInt8, tInt4, tBytes, tUUID),
		bStepInsert: newBulk("step_insert", tUUID, tUUID, tInt4, tText, tText, tText, tJSON, tBytes, tUUID, tInt4,
			tBool, tInt8, tInt8, tTime),
		bStepCall: newBulk("step_call", tUUID, tUUID, tInt4, tInt8, tJSON, tBytes),
		bStepUpdate: newBulk("step_update", tUUID, tUUID, tInt4, tText, tJSON, tText, tBytes, tInt8, tInt8, tFloat8,
			tInt8, tTime),
		bMark:         newBulk("mark_insert", tUUID, tUUID, tInt8, tText, tJSON),
		bMessagePurge: newBulk("message_purge", tUUID, tUUID),
		bMessage:      newBulk("message_insert", tUUID, tUUID, tInt8, tUUID, tText, tText, tJSON, tUUID, tTime),
		bTimerDelete:  newBulk("timer_delete", tUUID, tText, tUUID, tText),
		bTimerSet:     newBulk("timer_set", tUUID, tText, tUUID, tText, tTime),
		bUsage:        newBulk("usage_insert", tUUID, tUUID, tTime, tText, tUUID, tUUID, tText, tInt8, tInt8, tFloat8, tJSON),
		bAudit:        newBulk("audit_insert", tUUID, tUUID, tTime, tText, tText, tText, tUUID, tText, tJSON),
		bEvent:        newBulk("event_insert", tUUID, tUUID, tText, tBytes, tTime),
	}
}

func (r *rows) reset() {
	for _, b := range r {
		if b.rows > 0 {
			b.reset()
		}
	}
}

// next begins a row of the commit's tenant; the tenant is the first column of
// every statement, and no row can name another.
func (r *rows) next(statement int, c *Commit) []column {
	b := r[statement]
	b.rows++
	b.cols[0].uuid(c.Tenant.UUID)
	return b.cols
}

// add appends every row of c.
func (r *rows) add(c *Commit) {
	if i := c.Idempotency; i != nil {
		col := r.next(bIdempotency, c)
		col[1].bytes(i.Digest[:])
		col[2].bytes(i.Fingerprint[:])
		col[3].int4(i.Status)
		col[4].bytes(i.Response)
		col[5].time(i.At)
	}
	if t := c.NewThread; t != nil {
		col := r.next(bThreadInsert, c)
		col[1].uuid(t.ID.UUID)
		col[2].uuid(t.AgentID.UUID)
		col[3].textOrNull(t.Title)
		col[4].text(t.CreatedBy)
		uuidOrNull(&col[5], t.EndUserID)
		col[6].int8(t.NextSeq)
		col[7].time(t.CreatedAt)
		col[8].uuid(c.Op.UUID)
	}
	if t := c.Thread; t != nil {
		col := r.next(bThreadUpdate, c)
		col[1].uuid(t.ID.UUID)
		col[2].int8(t.Version)
		col[3].int8(t.Epoch)
		col[4].int8(t.SetEpoch)
		col[5].int8(t.NextSeq)
		col[6].time(t.UpdatedAt)
		col[7].timeOrNull(t.DeletedAt)
		col[8].uuid(c.Op.UUID)
		if t.PurgeMessages {
			col := r.next(bMessagePurge, c)
			col[1].uuid(t.ID.UUID)
		}
	}
	if n := c.Accept; n != nil {
		r.addRun(c, n)
	}
	if u := c.Run; u != nil {
		r.addRunUpdate(c, u)
	}
	for i := range c.Began {
		r.addStep(c, &c.Began[i])
	}
	for i := range c.Called {
		s := &c.Called[i]
		col := r.next(bStepCall, c)
		col[1].uuid(s.Run.UUID)
		col[2].int4(s.Idx)
		col[3].int8(s.CalledSeq)
		col[4].bytesOrNull(s.Input)
		col[5].bytesOrNull(s.Sealed)
	}
	for i := range c.Ended {
		r.addStepUpdate(c, &c.Ended[i])
	}
	for i := range c.Marks {
		m := &c.Marks[i]
		col := r.next(bMark, c)
		col[1].uuid(m.Run.UUID)
		col[2].int8(m.Seq)
		col[3].text(m.Type)
		col[4].bytesOrNull(m.Data)
	}
	for i := range c.Messages {
		r.addMessage(c, &c.Messages[i])
	}
	for i := range c.TimersDone {
		r.addTimerKey(bTimerDelete, c, &c.TimersDone[i])
	}
	if u := c.Approval; u != nil && u.joins(c) {
		for _, name := range u.DropTimers {
			r.addTimerKey(bTimerDelete, c, &TimerKey{Kind: "approval", Entity: u.ID.UUID, Name: name})
		}
	}
	for i := range c.Timers {
		r.addTimerKey(bTimerSet, c, &c.Timers[i].TimerKey)[4].time(c.Timers[i].DueAt)
	}
	for i := range c.Usage {
		r.addUsage(c, &c.Usage[i])
	}
	for i := range c.Audit {
		r.addAudit(c, &c.Audit[i])
	}
	for i := range c.Events {
		e := &c.Events[i]
		col := r.next(bEvent, c)
		col[1].uuid(e.ID.UUID)
		col[2].text(string(e.Type))
		col[3].bytes(e.Body)
		col[4].time(e.At)
	}
}

func (r *rows) addRun(c *Commit, n *RunInsert) {
	col := r.next(bRunInsert, c)
	col[1].uuid(n.ID.UUID)
	uuidOrNull(&col[2], n.AgentID)
	col[3].int4OrNull(n.AgentVersion)
	uuidOrNull(&col[4], n.WorkflowID)
	uuidOrNull(&col[5], n.ThreadID)
	col[6].int8OrNull(n.ThreadSeq)
	uuidOrNull(&col[7], n.ParentRunID)
	col[8].bytesOrNull(n.Input)
	col[9].text(string(n.OriginKind))
	col[10].uuid(n.OriginID)
	uuidOrNull(&col[11], n.EndUserID)
	person := n.PersonID
	if person == nil {
		person = n.EndUserID
	}
	uuidOrNull(&col[12], person)
	col[13].time(n.CreatedAt)
	col[14].bytesOrNull(n.State)
	col[15].uuid(c.Op.UUID)
}

func (r *rows) addRunUpdate(c *Commit, u *RunUpdate) {
	col := r.next(bRunUpdate, c)
	col[1].uuid(u.ID.UUID)
	col[2].int8(u.Version)
	col[3].int8(u.Epoch)
	col[4].int8(u.SetEpoch)
	col[5].text(string(u.Status))
	col[6].bytesOrNull(u.Output)
	col[7].textOrNull(u.ErrorCode)
	col[8].textOrNull(u.ErrorMessage)
	col[9].int8(u.TokensIn)
	col[10].int8(u.TokensOut)
	col[11].float8(u.CostUSD)
	col[12].timeOrNull(u.StartedAt)
	col[13].timeOrNull(u.FinishedAt)
	col[14].int8(u.Seq)
	col[15].int4(u.Steps)
	col[16].bytesOrNull(u.State)
	col[17].uuid(c.Op.UUID)
}

func (r *rows) addStep(c *Commit, s *StepInsert) {
	col := r.next(bStepInsert, c)
	col[1].uuid(s.Run.UUID)
	col[2].int4(s.Idx)
	col[3].text(string(s.Kind))
	col[4].text(s.Name)
	col[5].text(string(s.Status))
	col[6].bytesOrNull(s.Input)
	col[7].bytesOrNull(s.Sealed)
	uuidOrNull(&col[8], s.AgentID)
	col[9].int4OrNull(s.AgentVersion)
	col[10].boolean(s.Withheld)
	col[11].int8(s.BeganSeq)
	col[12].int8OrNull(s.CalledSeq)
	col[13].time(s.StartedAt)
}

func (r *rows) addStepUpdate(c *Commit, s *StepUpdate) {
	col := r.next(bStepUpdate, c)
	col[1].uuid(s.Run.UUID)
	col[2].int4(s.Idx)
	col[3].text(string(s.Status))
	col[4].bytesOrNull(s.Output)
	col[5].ints(s.Segments)
	col[6].bytesOrNull(s.Sealed)
	col[7].int8(s.TokensIn)
	col[8].int8(s.TokensOut)
	col[9].float8(s.CostUSD)
	col[10].int8OrNull(s.EndedSeq)
	col[11].time(s.FinishedAt)
}

func (r *rows) addMessage(c *Commit, m *Message) {
	col := r.next(bMessage, c)
	col[1].uuid(m.Thread.UUID)
	col[2].int8(m.Seq)
	col[3].uuid(m.ID.UUID)
	col[4].text(m.Role)
	col[5].text(m.Content)
	col[6].bytesOrNull(m.Attachments)
	uuidOrNull(&col[7], m.Run)
	col[8].time(m.CreatedAt)
}

func (r *rows) addTimerKey(statement int, c *Commit, k *TimerKey) []column {
	col := r.next(statement, c)
	col[1].text(k.Kind)
	col[2].uuid(k.Entity)
	col[3].text(k.Name)
	return col
}

func (r *rows) addUsage(c *Commit, u *Usage) {
	col := r.next(bUsage, c)
	col[1].uuid(u.ID.UUID)
	col[2].time(u.At)
	col[3].text(string(u.Kind))
	uuidOrNull(&col[4], u.Run)
	uuidOrNull(&col[5], u.Agent)
	col[6].text(u.Model)
	col[7].int8(u.TokensIn)
	col[8].int8(u.TokensOut)
	col[9].float8(u.CostUSD)
	col[10].bytesOrNull(u.Detail)
}

func (r *rows) addAudit(c *Commit, a *Audit) {
	col := r.next(bAudit, c)
	col[1].uuid(a.ID.UUID)
	col[2].time(a.At)
	col[3].text(a.Actor)
	col[4].text(a.Action)
	col[5].text(a.TargetKind)
	col[6].uuid(a.TargetID)
	col[7].text(a.IP)
	col[8].bytesOrNull(a.Detail)
}

// statements are what c writes beside the bulk statements, the approval first:
// what the run's end says of approvals is said of those that are still pending.
func (c *Commit) statements() []Statement {
	if c.Approval == nil {
		return c.Statements
	}
	return append([]Statement{c.Approval.statement(c)}, c.Statements...)
}

// size is about how many bytes the rows of c take, for the bound of a flush.
func (c *Commit) size() int {
	n := 256
	if c.Idempotency != nil {
		n += len(c.Idempotency.Response)
	}
	if c.Accept != nil {
		n += len(c.Accept.Input)
	}
	if c.Run != nil {
		n += len(c.Run.Output)
	}
	for i := range c.Began {
		n += len(c.Began[i].Input) + len(c.Began[i].Sealed)
	}
	for i := range c.Called {
		n += len(c.Called[i].Input) + len(c.Called[i].Sealed)
	}
	for i := range c.Ended {
		n += len(c.Ended[i].Output) + len(c.Ended[i].Sealed)
	}
	for i := range c.Marks {
		n += len(c.Marks[i].Data)
	}
	for i := range c.Messages {
		n += len(c.Messages[i].Content) + len(c.Messages[i].Attachments)
	}
	if c.Approval != nil {
		n += len(c.Approval.Decisions) + len(c.Approval.Edited)
	}
	for i := range c.Audit {
		n += len(c.Audit[i].Detail)
	}
	for i := range c.Usage {
		n += len(c.Usage[i].Detail)
	}
	for i := range c.Events {
		n += len(c.Events[i].Body)
	}
	return n
}

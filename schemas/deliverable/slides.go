package deliverable

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/xml"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Sizes of a slide, in EMU (914,400 to the inch), and what fits on it, in lines and characters of
// its text. The estimates are generous: a viewer shrinks what is still too long.
const (
	slideWidth, slideHeight = 12192000, 6858000
	bodyLeft, bodyTop       = 838200, 1600200
	bodyWidth, bodyHeight   = 10515600, 4572000

	linesOfSlide  = 13
	charsOfLine   = 85
	linesOfTable  = 15
	charsOfTable  = 120 // of a row, over all of its columns
	mostParagraph = linesOfSlide * charsOfLine
)

// slide is one slide: a title, and below it paragraphs, or a table, or a chart.
type slide struct {
	title    string // inline source
	cover    bool
	paras    []para
	lines    int // of the paragraphs
	header   []string
	rows     [][]string
	align    []byte
	draw     *drawing
	rels     []string // relationships beside that to the layout
	chartNum int
}

type para struct {
	spans  []span
	level  int
	bullet string // as XML; empty: none
	code   bool
	quote  bool
	strong bool // a heading of a table's or text's part
}

type deck struct {
	ctx    context.Context
	slides []*slide
	title  string // of the slides that follow
	links  int
	charts int
}

// slides makes a slide of each heading. What does not fit goes on on further slides with the same
// title. A first heading of level 1 is the cover.
func slides(ctx context.Context, d *doc, at time.Time) ([]byte, error) {
	k := &deck{ctx: ctx}
	for i := range d.blocks {
		if i%256 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err := k.block(&d.blocks[i]); err != nil {
			return nil, err
		}
	}
	if len(k.slides) == 0 {
		k.slides = append(k.slides, &slide{title: d.title(), cover: true})
	}
	return k.write(d, at)
}

func (k *deck) add(s *slide) (*slide, error) {
	if len(k.slides) >= maxSlides {
		return nil, fault("the text needs more than %d slides", maxSlides)
	}
	k.slides = append(k.slides, s)
	return s, nil
}

func (k *deck) block(b *block) (err error) {
	switch b.kind {
	case heading:
		k.title = b.text
		_, err = k.add(&slide{title: b.text, cover: len(k.slides) == 0 && b.level == 1})
	case table:
		err = k.table(b)
	case code:
		for line := range strings.SplitSeq(b.text, "\n") {
			if err = k.text(para{spans: []span{{text: strings.ReplaceAll(line, "\t", "    "), code: true}}, code: true}); err != nil {
				return err
			}
		}
	case rule:
	default:
		p := para{spans: inline(b.text), level: b.depth, quote: b.quote > 0}
		if b.kind == item {
			p.level = b.depth - 1
			p.bullet = `<a:buFont typeface="Arial"/><a:buChar char="•"/>`
			if b.ordered { // the number as written: a viewer would count anew on each slide
				p.bullet = ""
				p.spans = append([]span{{text: strconv.Itoa(b.number) + ". "}}, p.spans...)
			}
		}
		err = k.text(p)
	}
	return err
}

// text adds a paragraph, in parts if it is longer than a slide.
func (k *deck) text(p para) error {
	for {
		head, rest := p, para{}
		if n, cut := cutSpans(p.spans, mostParagraph); cut != nil {
			head.spans = n
			rest = p
			rest.spans, rest.bullet = cut, ""
		}
		lines := head.height()
		s := k.current()
		if s == nil || s.lines > 0 && s.lines+lines > linesOfSlide {
			var err error
			if s, err = k.add(&slide{title: k.title}); err != nil {
				return err
			}
		}
		s.paras, s.lines = append(s.paras, head), s.lines+lines
		if rest.spans == nil {
			return nil
		}
		p = rest
	}
}

// current returns the slide that takes further text, nil if none does.
func (k *deck) current() *slide {
	if len(k.slides) == 0 {
		return nil
	}
	s := k.slides[len(k.slides)-1]
	if s.cover || s.header != nil || s.draw != nil {
		return nil
	}
	return s
}

func (p *para) height() int {
	lines, n := 1, 0
	for _, s := range p.spans {
		for _, r := range s.text {
			if n++; r == '\n' || n > charsOfLine-4*p.level {
				lines, n = lines+1, 0
			}
		}
	}
	return lines
}

// cutSpans splits spans after n characters, at a space if there is one near. rest is nil if they are
// not longer.
func cutSpans(spans []span, n int) (head, rest []span) {
	for i, s := range spans {
		size := 0
		for at := range s.text {
			if size < n {
				size++
				continue
			}
			if space := strings.LastIndexByte(s.text[:at], ' '); space > at-200 && space > 0 {
				at = space + 1
			}
			a, b := s, s
			a.text, b.text = s.text[:at], s.text[at:]
			return append(spans[:i:i], a), append([]span{b}, spans[i+1:]...)
		}
		n -= size
	}
	return spans, nil
}

func (k *deck) table(b *block) error {
	header, values := b.values()
	if d := b.drawing(header, values); d != nil {
		s := k.empty()
		if s == nil {
			var err error
			if s, err = k.add(&slide{title: k.title}); err != nil {
				return err
			}
		}
		s.draw = d
		k.charts++
		s.chartNum = k.charts
	}
	rows := b.rows[1:]
	for first := true; first || len(rows) > 0; first = false {
		s := k.empty()
		if s == nil {
			var err error
			if s, err = k.add(&slide{title: k.title}); err != nil {
				return err
			}
		}
		s.header, s.align = b.rows[0], b.align
		lines := rowHeight(b.rows[0])
		n := 0
		for n < len(rows) {
			if lines += rowHeight(rows[n]); lines > linesOfTable && n > 0 {
				break
			}
			n++
		}
		s.rows, rows = rows[:n], rows[n:]
		if k.ctx.Err() != nil {
			return k.ctx.Err()
		}
	}
	return nil
}

// empty returns the last slide if nothing is below its title.
func (k *deck) empty() *slide {
	if s := k.current(); s != nil && s.lines == 0 {
		return s
	}
	return nil
}

func rowHeight(row []string) int {
	lines := 1
	for _, src := range row {
		lines = max(lines, 1+len(src)*len(row)/charsOfTable)
	}
	return lines
}

// Writing.

func (k *deck) write(d *doc, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	var failed error
	put := func(name, content string) {
		if failed == nil {
			failed = writePart(z, name, content, at)
		}
		if failed == nil && out.Len() > MaxOutput {
			failed = fault("the file would be larger than %d MiB", MaxOutput>>20)
		}
	}
	var types, ids, rels strings.Builder
	for i := range k.slides {
		n := strconv.Itoa(i + 1)
		types.WriteString(override("/ppt/slides/slide"+n+".xml", "presentationml.slide"))
		ids.WriteString(`<p:sldId id="` + strconv.Itoa(256+i) + `" r:id="rId` + strconv.Itoa(i+10) + `"/>`)
		rels.WriteString(relation("rId"+strconv.Itoa(i+10), "slide", "slides/slide"+n+".xml"))
	}
	for n := range k.charts {
		types.WriteString(override("/ppt/charts/chart"+strconv.Itoa(n+1)+".xml", "drawingml.chart"))
	}
	stamp := at.Format(time.RFC3339)
	put("[Content_Types].xml", fmt.Sprintf(contentTypes, types.String()))
	put("_rels/.rels", rootRelations)
	put("docProps/core.xml", fmt.Sprintf(coreProperties, escape(d.title()), stamp, stamp))
	put("docProps/app.xml", appProperties)
	put("ppt/presentation.xml", fmt.Sprintf(presentation, ids.String(), slideWidth, slideHeight))
	put("ppt/_rels/presentation.xml.rels", relations(relation("rId1", "slideMaster", "slideMasters/slideMaster1.xml")+
		relation("rId2", "theme", "theme/theme1.xml")+relation("rId3", "presProps", "presProps.xml")+rels.String()))
	put("ppt/presProps.xml", presentationProperties)
	put("ppt/theme/theme1.xml", theme())
	put("ppt/slideMasters/slideMaster1.xml", slideMaster)
	put("ppt/slideMasters/_rels/slideMaster1.xml.rels", relations(relation("rId1", "slideLayout", "../slideLayouts/slideLayout1.xml")+
		relation("rId2", "slideLayout", "../slideLayouts/slideLayout2.xml")+relation("rId3", "slideLayout", "../slideLayouts/slideLayout3.xml")+
		relation("rId4", "theme", "../theme/theme1.xml")))
	for i, content := range layouts {
		n := strconv.Itoa(i + 1)
		put("ppt/slideLayouts/slideLayout"+n+".xml", content)
		put("ppt/slideLayouts/_rels/slideLayout"+n+".xml.rels", relations(relation("rId1", "slideMaster", "../slideMasters/slideMaster1.xml")))
	}
	for i, s := range k.slides {
		if k.ctx.Err() != nil {
			return nil, k.ctx.Err()
		}
		n := strconv.Itoa(i + 1)
		content, layout := k.slide(s)
		put("ppt/slides/slide"+n+".xml", content)
		put("ppt/slides/_rels/slide"+n+".xml.rels", relations(relation("rId1", "slideLayout", "../slideLayouts/slideLayout"+layout+".xml")+strings.Join(s.rels, "")))
		if s.draw != nil {
			put("ppt/charts/chart"+strconv.Itoa(s.chartNum)+".xml", s.draw.part())
		}
		if failed != nil {
			break
		}
	}
	if failed == nil {
		failed = z.Close()
	}
	return out.Bytes(), failed
}

func writePart(z *zip.Writer, name, content string, at time.Time) error {
	w, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Deflate, Modified: at})
	if err == nil {
		_, err = w.Write([]byte(content))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s))
	return b.String()
}

// slide returns the slide's XML and the number of its layout. It fills the slide's relations.
func (k *deck) slide(s *slide) (content, layout string) {
	var b strings.Builder
	b.WriteString(xmlHead + `<p:sld ` + spaces + `><p:cSld><p:spTree>` + groupShape)
	title := titleSpans(s.title)
	switch {
	case s.cover:
		layout = "1"
		k.shape(&b, s, 2, "Title", `type="ctrTitle"`, []para{{spans: title}})
	case s.header != nil || s.draw != nil || len(s.paras) == 0:
		layout = "3"
		k.shape(&b, s, 2, "Title", `type="title"`, []para{{spans: title}})
	default:
		layout = "2"
		k.shape(&b, s, 2, "Title", `type="title"`, []para{{spans: title}})
		k.shape(&b, s, 3, "Content", `idx="1"`, s.paras)
	}
	switch {
	case s.draw != nil:
		id := k.rel(s, "chart", "../charts/chart"+strconv.Itoa(s.chartNum)+".xml", false)
		fmt.Fprintf(&b, `<p:graphicFrame><p:nvGraphicFramePr><p:cNvPr id="4" name="Chart"/><p:cNvGraphicFramePr/><p:nvPr/></p:nvGraphicFramePr>`+
			`<p:xfrm><a:off x="%d" y="%d"/><a:ext cx="%d" cy="%d"/></p:xfrm><a:graphic><a:graphicData uri="http://schemas.openxmlformats.org/drawingml/2006/chart">`+
			`<c:chart xmlns:c="http://schemas.openxmlformats.org/drawingml/2006/chart" r:id="%s"/></a:graphicData></a:graphic></p:graphicFrame>`,
			bodyLeft, bodyTop, bodyWidth, bodyHeight, id)
	case s.header != nil:
		k.grid(&b, s)
	}
	b.WriteString(`</p:spTree></p:cSld><p:clrMapOvr><a:masterClrMapping/></p:clrMapOvr></p:sld>`)
	return b.String(), layout
}

// titleSpans returns a title without links, short enough for its place.
func titleSpans(src string) []span {
	spans, rest := cutSpans(inline(src), 150)
	if rest != nil {
		spans = append(spans, span{text: "…"})
	}
	for i := range spans {
		spans[i].link = ""
	}
	return spans
}

// rel adds a relationship of a slide and returns its id.
func (k *deck) rel(s *slide, kind, target string, external bool) string {
	id := "rId" + strconv.Itoa(len(s.rels)+2)
	if external {
		s.rels = append(s.rels, `<Relationship Id="`+id+`" Type="`+relationTypes+kind+`" Target="`+escape(target)+`" TargetMode="External"/>`)
	} else {
		s.rels = append(s.rels, relation(id, kind, target))
	}
	return id
}

func (k *deck) shape(b *strings.Builder, s *slide, id int, name, place string, paras []para) {
	fmt.Fprintf(b, `<p:sp><p:nvSpPr><p:cNvPr id="%d" name="%s"/><p:cNvSpPr><a:spLocks noGrp="1"/></p:cNvSpPr><p:nvPr><p:ph %s/></p:nvPr></p:nvSpPr><p:spPr/>`+
		`<p:txBody><a:bodyPr><a:normAutofit/></a:bodyPr><a:lstStyle/>`, id, name, place)
	for i := range paras {
		k.para(b, s, &paras[i], 0)
	}
	b.WriteString(`</p:txBody></p:sp>`)
}

// para writes a paragraph. size is that of its text in hundredths of a point, 0 the layout's.
func (k *deck) para(b *strings.Builder, s *slide, p *para, size int) {
	b.WriteString(`<a:p>`)
	k.paraProperties(b, p)
	for _, sp := range p.spans {
		attributes := ""
		if sp.bold || p.strong {
			attributes += ` b="1"`
		}
		if sp.italic || p.quote {
			attributes += ` i="1"`
		}
		if sp.strike {
			attributes += ` strike="sngStrike"`
		}
		if size > 0 {
			attributes += ` sz="` + strconv.Itoa(size) + `"`
		} else if p.code {
			attributes += ` sz="1400"`
		}
		inner := ""
		if sp.code {
			inner = `<a:latin typeface="Courier New"/><a:cs typeface="Courier New"/>`
		}
		if sp.link != "" && k.links < maxLinks {
			k.links++
			inner += `<a:hlinkClick r:id="` + k.rel(s, "hyperlink", sp.link, true) + `"/>`
		}
		properties := `<a:rPr` + attributes + ` dirty="0">` + inner + `</a:rPr>`
		for i, line := range strings.Split(sp.text, "\n") {
			if i > 0 {
				b.WriteString(`<a:br>` + properties + `</a:br>`)
			}
			if line != "" {
				b.WriteString(`<a:r>` + properties + `<a:t>` + escape(line) + `</a:t></a:r>`)
			}
		}
	}
	b.WriteString(`</a:p>`)
}

func (k *deck) paraProperties(b *strings.Builder, p *para) {
	rtl := ""
	for _, sp := range p.spans {
		if rightToLeft(sp.text) {
			rtl = ` rtl="1" algn="r"`
		}
		if strings.TrimSpace(sp.text) != "" {
			break
		}
	}
	switch {
	case p.level == 0 && p.bullet == "" && rtl == "" && !p.code:
		b.WriteString(`<a:pPr marL="0" indent="0"><a:buNone/></a:pPr>`)
	case p.bullet == "":
		fmt.Fprintf(b, `<a:pPr marL="%d" indent="0"%s><a:buNone/></a:pPr>`, 342900*p.level, rtl)
	default:
		fmt.Fprintf(b, `<a:pPr marL="%d" indent="-285750"%s>%s</a:pPr>`, 285750+342900*p.level, rtl, p.bullet)
	}
}

// grid writes a table.
func (k *deck) grid(b *strings.Builder, s *slide) {
	columns := len(s.header)
	size := 1400
	switch {
	case columns > 12:
		size = 700
	case columns > 7:
		size = 1000
	}
	each := bodyWidth / columns
	rowHeight := 370840
	fmt.Fprintf(b, `<p:graphicFrame><p:nvGraphicFramePr><p:cNvPr id="4" name="Table"/><p:cNvGraphicFramePr><a:graphicFrameLocks noGrp="1"/></p:cNvGraphicFramePr><p:nvPr/></p:nvGraphicFramePr>`+
		`<p:xfrm><a:off x="%d" y="%d"/><a:ext cx="%d" cy="%d"/></p:xfrm><a:graphic><a:graphicData uri="http://schemas.openxmlformats.org/drawingml/2006/table">`+
		`<a:tbl><a:tblPr firstRow="1" bandRow="1"/><a:tblGrid>`, bodyLeft, bodyTop, each*columns, rowHeight*(len(s.rows)+1))
	for range columns {
		fmt.Fprintf(b, `<a:gridCol w="%d"/>`, each)
	}
	b.WriteString(`</a:tblGrid>`)
	k.row(b, s, s.header, rowHeight, size, true, false)
	for i, r := range s.rows {
		k.row(b, s, r, rowHeight, size, false, i%2 == 1)
	}
	b.WriteString(`</a:tbl></a:graphicData></a:graphic></p:graphicFrame>`)
}

func (k *deck) row(b *strings.Builder, s *slide, cells []string, height, size int, header, band bool) {
	fmt.Fprintf(b, `<a:tr h="%d">`, height)
	for i, src := range cells {
		p := para{spans: inline(src), strong: header}
		b.WriteString(`<a:tc><a:txBody><a:bodyPr/><a:lstStyle/><a:p>`)
		align := ""
		switch a := s.align[i]; {
		case a == 'r':
			align = ` algn="r"`
		case a == 'c':
			align = ` algn="ctr"`
		}
		b.WriteString(`<a:pPr` + align + `/>`)
		var runs strings.Builder
		k.para(&runs, s, &p, size)
		inner := runs.String() // its own properties of the paragraph do not hold in a table
		inner = inner[strings.Index(inner, `</a:pPr>`)+len(`</a:pPr>`):]
		b.WriteString(inner + `</a:txBody><a:tcPr anchor="ctr" marL="68580" marR="68580" marT="34290" marB="34290">` + border + fill(header, band) + `</a:tcPr></a:tc>`)
	}
	b.WriteString(`</a:tr>`)
}

const border = `<a:lnL w="6350"><a:solidFill><a:srgbClr val="C6CED8"/></a:solidFill></a:lnL><a:lnR w="6350"><a:solidFill><a:srgbClr val="C6CED8"/></a:solidFill></a:lnR>` +
	`<a:lnT w="6350"><a:solidFill><a:srgbClr val="C6CED8"/></a:solidFill></a:lnT><a:lnB w="6350"><a:solidFill><a:srgbClr val="C6CED8"/></a:solidFill></a:lnB>`

func fill(header, band bool) string {
	switch {
	case header:
		return `<a:solidFill><a:srgbClr val="E8EDF5"/></a:solidFill>`
	case band:
		return `<a:solidFill><a:srgbClr val="F6F8FB"/></a:solidFill>`
	}
	return `<a:noFill/>`
}

// part returns the XML of a chart with its values in it.
func (d *drawing) part() string {
	var b strings.Builder
	b.WriteString(xmlHead + `<c:chartSpace xmlns:c="http://schemas.openxmlformats.org/drawingml/2006/chart" xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main">` +
		`<c:roundedCorners val="0"/><c:chart><c:autoTitleDeleted val="1"/><c:plotArea><c:layout/>`)
	element := map[chartKind]string{columnChart: "barChart", barChart: "barChart", lineChart: "lineChart", pieChart: "pieChart"}[d.kind]
	b.WriteString(`<c:` + element + `>`)
	switch d.kind {
	case columnChart:
		b.WriteString(`<c:barDir val="col"/><c:grouping val="clustered"/>`)
	case barChart:
		b.WriteString(`<c:barDir val="bar"/><c:grouping val="clustered"/>`)
	case lineChart:
		b.WriteString(`<c:grouping val="standard"/>`)
	}
	fmt.Fprintf(&b, `<c:varyColors val="%d"/>`, map[bool]int{true: 1}[d.kind == pieChart])
	for i, s := range d.series {
		d.one(&b, i, s)
	}
	axes := `<c:axId val="111111111"/><c:axId val="222222222"/>`
	switch d.kind {
	case lineChart:
		b.WriteString(`<c:marker val="1"/>` + axes)
	case pieChart:
		b.WriteString(`<c:firstSliceAng val="0"/>`)
	default:
		b.WriteString(`<c:gapWidth val="80"/>` + axes)
	}
	b.WriteString(`</c:` + element + `>`)
	if d.kind != pieChart {
		names, numbers := "b", "l"
		order := "minMax"
		if d.kind == barChart {
			names, numbers = "l", "b"
			order = "maxMin"
		}
		b.WriteString(`<c:catAx><c:axId val="111111111"/><c:scaling><c:orientation val="` + order + `"/></c:scaling><c:delete val="0"/><c:axPos val="` + names +
			`"/><c:numFmt formatCode="General" sourceLinked="0"/><c:majorTickMark val="none"/><c:minorTickMark val="none"/><c:tickLblPos val="low"/><c:crossAx val="222222222"/><c:crosses val="autoZero"/></c:catAx>` +
			`<c:valAx><c:axId val="222222222"/><c:scaling><c:orientation val="minMax"/></c:scaling><c:delete val="0"/><c:axPos val="` + numbers +
			`"/><c:majorGridlines/><c:numFmt formatCode="General" sourceLinked="0"/><c:majorTickMark val="none"/><c:minorTickMark val="none"/><c:tickLblPos val="nextTo"/><c:crossAx val="111111111"/><c:crosses val="` +
			map[bool]string{true: "max", false: "autoZero"}[d.kind == barChart] + `"/></c:valAx>`)
	}
	b.WriteString(`</c:plotArea><c:legend><c:legendPos val="b"/><c:overlay val="0"/></c:legend><c:plotVisOnly val="1"/></c:chart></c:chartSpace>`)
	return b.String()
}

func (d *drawing) one(b *strings.Builder, i int, s series) {
	fmt.Fprintf(b, `<c:ser><c:idx val="%d"/><c:order val="%d"/><c:tx><c:strRef><c:f>%s</c:f><c:strCache><c:ptCount val="1"/><c:pt idx="0"><c:v>%s</c:v></c:pt></c:strCache></c:strRef></c:tx>`,
		i, i, cellOf(i+1, 1, 1), escape(s.name))
	switch d.kind {
	case lineChart:
		fmt.Fprintf(b, `<c:spPr><a:ln w="28575"><a:solidFill><a:srgbClr val="%s"/></a:solidFill></a:ln></c:spPr><c:marker><c:symbol val="none"/></c:marker>`, colors[i])
	case pieChart:
		for n := range s.values {
			fmt.Fprintf(b, `<c:dPt><c:idx val="%d"/><c:bubble3D val="0"/><c:spPr><a:solidFill><a:srgbClr val="%s"/></a:solidFill></c:spPr></c:dPt>`, n, colors[n%maxSeries])
		}
	default:
		fmt.Fprintf(b, `<c:spPr><a:solidFill><a:srgbClr val="%s"/></a:solidFill></c:spPr><c:invertIfNegative val="0"/>`, colors[i])
	}
	last := len(d.categories) + 1
	fmt.Fprintf(b, `<c:cat><c:strRef><c:f>%s</c:f><c:strCache><c:ptCount val="%d"/>`, cellOf(0, 2, last), len(d.categories))
	for n, c := range d.categories {
		fmt.Fprintf(b, `<c:pt idx="%d"><c:v>%s</c:v></c:pt>`, n, escape(c))
	}
	format := s.format
	if format == "" {
		format = "General"
	}
	fmt.Fprintf(b, `</c:strCache></c:strRef></c:cat><c:val><c:numRef><c:f>%s</c:f><c:numCache><c:formatCode>%s</c:formatCode><c:ptCount val="%d"/>`, cellOf(i+1, 2, last), escape(format), len(s.values))
	for n, v := range s.values {
		if s.has[n] {
			fmt.Fprintf(b, `<c:pt idx="%d"><c:v>%s</c:v></c:pt>`, n, strconv.FormatFloat(v, 'g', -1, 64))
		}
	}
	b.WriteString(`</c:numCache></c:numRef></c:val>`)
	if d.kind == lineChart {
		b.WriteString(`<c:smooth val="0"/>`)
	}
	b.WriteString(`</c:ser>`)
}

// cellOf names cells of the sheet that a chart would have: its values are in the chart itself.
func cellOf(column, from, to int) string {
	name := string(rune('A' + column))
	out := "Sheet1!$" + name + "$" + strconv.Itoa(from)
	if to > from {
		out += ":$" + name + "$" + strconv.Itoa(to)
	}
	return out
}

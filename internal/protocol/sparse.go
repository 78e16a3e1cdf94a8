package protocol

import (
	"cmp"
	"encoding"
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Before its first value, encoding/json examines all types that the value can contain. For requests and answers this
// takes 1 ms of the 12 ms of a short command. The functions below examine only the types of the fields that a value has.

// marshalSparse returns the JSON of a value, as [json.Marshal] does.
func marshalSparse(v any) ([]byte, error) { return appendSparse(nil, reflect.ValueOf(v)) }

func appendSparse(to []byte, v reflect.Value) ([]byte, error) {
	if v.Kind() == reflect.Pointer && !v.IsNil() {
		return appendSparse(to, v.Elem())
	}
	fields, ok := sparseFields(v.Type())
	if !ok {
		if v.CanAddr() { // so that methods of the pointer are called
			v = v.Addr()
		}
		text, err := json.Marshal(v.Interface())
		return append(to, text...), err
	}
	to = append(to, '{')
	empty := len(to)
	for _, f := range fields {
		value := v.FieldByIndex(f.index)
		if f.omits(value) {
			continue
		}
		if len(to) > empty {
			to = append(to, ',')
		}
		to = append(strconv.AppendQuote(to, f.name), ':')
		var err error
		if to, err = appendSparse(to, value); err != nil {
			return nil, err
		}
	}
	return append(to, '}'), nil
}

// unmarshalSparse stores the value of a JSON text in the value that to points to, as [json.Unmarshal] does. Names of
// fields must be exact.
func unmarshalSparse(text []byte, to any) error { return storeSparse(text, reflect.ValueOf(to).Elem()) }

func storeSparse(text []byte, to reflect.Value) error {
	if to.Kind() == reflect.Pointer && string(text) != "null" {
		if _, ok := sparseFields(to.Type().Elem()); ok {
			if to.IsNil() {
				to.Set(reflect.New(to.Type().Elem()))
			}
			return storeSparse(text, to.Elem())
		}
	}
	fields, ok := sparseFields(to.Type())
	if !ok {
		return json.Unmarshal(text, to.Addr().Interface())
	}
	var parts map[string]json.RawMessage
	if err := json.Unmarshal(text, &parts); err != nil {
		return err
	}
	for _, f := range fields {
		if part, ok := parts[f.name]; ok {
			if err := storeSparse(part, to.FieldByIndex(f.index)); err != nil {
				return err
			}
		}
	}
	return nil
}

// A sparseField is a field of a struct, or of a struct that is embedded in it, as JSON has the field.
type sparseField struct {
	index               []int
	name                string
	omitEmpty, omitZero bool
}

// examined has the result of examine for each type, a []sparseField or nil: a client can make many requests.
var examined sync.Map

// sparseFields are the fields of a struct in JSON. It returns false for a type that encoding/json writes in another
// way, and for a struct with two fields of one name or with a tag that the functions of this file do not know.
func sparseFields(t reflect.Type) (fields []sparseField, ok bool) {
	if t.Kind() != reflect.Struct {
		return nil, false
	}
	known, found := examined.Load(t)
	if !found {
		fields, ok := examine(t)
		if !ok {
			fields = nil
		} else if fields == nil {
			fields = []sparseField{}
		}
		known, _ = examined.LoadOrStore(t, fields)
	}
	fields = known.([]sparseField)
	return fields, fields != nil
}

func examine(t reflect.Type) (fields []sparseField, ok bool) {
	if hasMethods(t) {
		return nil, false
	}
	for i := range t.NumField() {
		of := t.Field(i)
		tag, tagged := of.Tag.Lookup("json")
		switch {
		case tag == "-":
		case of.Anonymous:
			inner, ok := sparseFields(of.Type)
			if tagged || !ok {
				return nil, false
			}
			for _, f := range inner {
				f.index = append([]int{i}, f.index...)
				fields = append(fields, f)
			}
		case of.IsExported():
			f, ok := newSparseField(of, tag)
			if !ok {
				return nil, false
			}
			fields = append(fields, f)
		}
	}
	names := map[string]bool{}
	for _, f := range fields {
		names[f.name] = true
	}
	return fields, len(names) == len(fields)
}

// hasMethods says whether a type has methods that read or write it as JSON.
func hasMethods(t reflect.Type) bool {
	return slices.ContainsFunc([]reflect.Type{
		reflect.TypeFor[json.Marshaler](), reflect.TypeFor[json.Unmarshaler](),
		reflect.TypeFor[encoding.TextMarshaler](), reflect.TypeFor[encoding.TextUnmarshaler](),
	}, reflect.PointerTo(t).Implements)
}

func newSparseField(of reflect.StructField, tag string) (f sparseField, ok bool) {
	name, options, _ := strings.Cut(tag, ",")
	f = sparseField{index: of.Index, name: cmp.Or(name, of.Name)}
	for option := range strings.SplitSeq(options, ",") {
		switch option {
		case "":
		case "omitempty":
			f.omitEmpty = true
		case "omitzero":
			f.omitZero = true
		default:
			return f, false
		}
	}
	return f, true
}

// omits says whether an object with this value of the field leaves the field out.
func (f sparseField) omits(v reflect.Value) bool {
	if f.omitZero {
		zero := v.IsZero()
		if z, ok := v.Interface().(interface{ IsZero() bool }); ok {
			zero = z.IsZero()
		}
		if zero {
			return true
		}
	}
	switch v.Kind() {
	case reflect.Array, reflect.Map, reflect.Slice, reflect.String:
		return f.omitEmpty && v.Len() == 0
	case reflect.Struct:
		return false
	}
	return f.omitEmpty && v.IsZero()
}

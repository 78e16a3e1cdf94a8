package sandbox

import (
	"fmt"
	"reflect"
	"strings"
)

// refuseOther refuses a request that sets a field which its provider does not
// support. supported is a copy of the request with the supported fields alone. So a
// provider refuses each field that is added to the struct later, until the provider
// copies the field, too.
func refuseOther[T any](request, supported T) error {
	have, kept := reflect.ValueOf(request), reflect.ValueOf(supported)
	var names []string
	for i := range have.NumField() {
		if !isEmpty(have.Field(i)) && isEmpty(kept.Field(i)) {
			names = append(names, fieldName(have.Type().Field(i)))
		}
	}
	if len(names) == 0 {
		return nil
	}
	return &ConfigError{Reason: fmt.Sprintf("%s: a command without isolation cannot have this; leave it out, or run in a sandbox", strings.Join(names, ", "))}
}

// isEmpty tells whether a field asks for nothing.
func isEmpty(v reflect.Value) bool {
	if v.Kind() == reflect.Slice || v.Kind() == reflect.Map {
		return v.Len() == 0
	}
	return v.IsZero()
}

// fieldName is the name of a field in JSON, or in Go where JSON has none.
func fieldName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	if name == "" {
		return f.Name
	}
	return name
}

{{/*
Puts a patch (from) into an object (into), in place, as Kustomize does: maps key by key, what is in these lists
by name or path, and other lists as a whole. null takes away.
*/}}
{{- define "inflight.merge" -}}
{{- $named := dict "containers" "name" "initContainers" "name" "env" "name" "volumes" "name" "volumeMounts" "mountPath" -}}
{{- $into := .into -}}
{{- range $key, $new := .from -}}
  {{- $old := get $into $key -}}
  {{- if kindIs "invalid" $new -}}
    {{- $_ := unset $into $key -}}
  {{- else if and (kindIs "map" $old) (kindIs "map" $new) -}}
    {{- include "inflight.merge" (dict "into" $old "from" $new) -}}
  {{- else if and (kindIs "slice" $old) (hasKey $named $key) -}}
    {{- $by := get $named $key -}}
    {{- $added := list -}}
    {{- range $item := $new -}}
      {{- $known := false -}}
      {{- range $there := $old -}}
        {{- if eq (get $there $by) (get $item $by) -}}
          {{- include "inflight.merge" (dict "into" $there "from" $item) -}}
          {{- $known = true -}}
        {{- end -}}
      {{- end -}}
      {{- if not $known -}}{{- $added = append $added (deepCopy $item) -}}{{- end -}}
    {{- end -}}
    {{- $_ := set $into $key (concat $added $old) -}}
  {{- else -}}
    {{- $_ := set $into $key (deepCopy $new) -}}
  {{- end -}}
{{- end -}}
{{- end -}}

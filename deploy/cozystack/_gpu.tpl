{{- /*
SPDX-License-Identifier: Apache-2.0

GPU classes for Cozystack's charts; README.md beside this file says where each is
included. They take a `gpus` list, whose entries are all {className, count} or all
{name}. What has no class entries renders the very bytes it did without them:
machine templates are named by a hash of their content.
*/ -}}

{{- /*
The class entries as JSON without spaces, or nothing. It fails on a list that is
partly classes, and on a class entry that the webhooks would not read.
*/ -}}
{{- define "gpuclass.entries" -}}
{{-   $entries := list -}}
{{-   range $i, $gpu := . -}}
{{-     if not (kindIs "map" $gpu) -}}
{{-       fail (printf "gpus[%v]: must have either className and count, or name" $i) -}}
{{-     end -}}
{{-     if hasKey $gpu "className" -}}
{{-       with omit $gpu "className" "count" | keys | sortAlpha -}}
{{-         fail (printf "gpus[%v]: className goes with count alone, not with %s" $i (join ", " .)) -}}
{{-       end -}}
{{-       if or (not (kindIs "string" $gpu.className)) (not $gpu.className) -}}
{{-         fail (printf "gpus[%v].className: must be the name of a GPUClass" $i) -}}
{{-       end -}}
{{- /* Compared as JSON: a number's Go type depends on who decoded the values. */ -}}
{{-       if not (regexMatch "^[1-9][0-9]*$" (toJson $gpu.count)) -}}
{{-         fail (printf "gpus[%v].count: must be a whole number of at least 1, got %s" $i (toJson $gpu.count)) -}}
{{-       end -}}
{{-       $entries = append $entries $gpu -}}
{{-     else if not (hasKey $gpu "name") -}}
{{-       fail (printf "gpus[%v]: must have either className and count, or name" $i) -}}
{{-     end -}}
{{-   end -}}
{{-   if $entries -}}
{{-     if ne (len $entries) (len .) -}}
{{-       fail "gpus: entries by className and entries by name cannot be mixed in one object" -}}
{{-     end -}}
{{-     toJson $entries -}}
{{-   end -}}
{{- end -}}

{{- /* Annotations of a VM's spec.template.metadata. */ -}}
{{- define "gpuclass.annotations" -}}
{{-   with include "gpuclass.entries" . -}}
cozystack.io/gpus: {{ toJson . }}
{{-   end -}}
{{- end -}}

{{- /* Labels of a VM's spec.template.metadata. */ -}}
{{- define "gpuclass.labels" -}}
{{-   if include "gpuclass.entries" . -}}
cozystack.io/gpu-reference: "true"
{{-   end -}}
{{- end -}}

{{- /* Fields of a VM's spec.template.spec.domain.devices: the entries by name. */ -}}
{{- define "gpuclass.devices" -}}
{{-   if and . (not (include "gpuclass.entries" .)) -}}
gpus:
{{-     range $i, $gpu := . }}
- name: gpu{{ add1 $i }}
  deviceName: {{ $gpu.name }}
{{-     end -}}
{{-   end -}}
{{- end -}}

{{- /*
The maxSurge of a pool's MachineDeployment, from a list of gpus and the surge
without classes. A pool with classes is replaced machine by machine: a budget
holds the units of the pool, and no more.
*/ -}}
{{- define "gpuclass.maxSurge" -}}
{{-   if include "gpuclass.entries" (first .) -}}0{{- else -}}{{ last . }}{{- end -}}
{{- end -}}

{{- /*
Copies quotas, but for the budgets of GPU classes, from the first dict of the list
into the second. A copy through YAML would change numbers' types, and so bytes.
*/ -}}
{{- define "gpuclass.copyQuotas" -}}
{{-   $copy := last . -}}
{{-   range $key, $value := first . -}}
{{-     if not (hasPrefix "gpu.cozystack.io/" $key) -}}
{{-       $_ := set $copy $key $value -}}
{{-     end -}}
{{-   end -}}
{{- end -}}

# Runs the demo, as `make demo` does:  docker build -t edriver-demo . && docker run --rm --init edriver-demo
FROM python:3.11-slim

# Alone, so that a change of the source leaves this layer as it is. This index has the build for the CPU.
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu torch==2.13.0

RUN useradd --create-home trainer
WORKDIR /home/trainer/edriver
COPY . .
# The demo draws its picture in out/.
RUN pip install --no-cache-dir '.[examples]' && mkdir out && chown trainer out

USER trainer
CMD ["python", "examples/digits/demo.py"]
